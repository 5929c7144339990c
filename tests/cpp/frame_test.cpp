#include "net/frame.h"

#include "base/sha256.h"
#include "fuzz.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

using namespace ringcomm;
using ringcomm::testing::Fuzz;

namespace {

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

FrameHeader sample() {
  return {.collective = 1,
          .dtype = 6,
          .reduceOp = 2,
          .flags = 0x80,
          .sequence = 0x0102030405060708,
          .count = 1u << 30,
          .root = -1,
          .message = 0xA1B2C3D4,
          .length = 262144,
          .offset = 0x1122334455667788};
}

HeaderBytes encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  bytes.fill(std::byte{0xEE});
  encode(header, bytes);
  return bytes;
}

FrameHeader randomHeader(Fuzz& fuzz) {
  FrameHeader header = sample();
  header.collective = static_cast<uint8_t>(fuzz.below(256));
  header.sequence = fuzz.below(UINT64_MAX);
  header.root = static_cast<int32_t>(fuzz.below(16)) - 1;
  header.length = static_cast<uint32_t>(fuzz.below(kMaxSliceBytes + 1));
  header.offset = fuzz.below(UINT64_MAX - kMaxSliceBytes);
  return header;
}

// What a parser makes of `bytes` that come in pieces of at most `piece`.
struct Parsed {
  std::vector<ControlMessage> messages;
  Status status;
};

Parsed parse(std::string_view bytes, size_t piece) {
  Parsed parsed;
  ControlParser parser;
  while (!bytes.empty()) {
    auto rest = asBytes(bytes.substr(0, piece));
    bytes.remove_prefix(rest.size());
    while (true) {
      auto next = parser.next(rest);
      if (!next) {
        parsed.status = next.status();
        return parsed;
      }
      if (!next->has_value()) {
        CHECK(rest.empty());
        break;
      }
      parsed.messages.push_back(**next);
    }
  }
  return parsed;
}

ControlMessage failure(std::string text, Code code = Code::kPeerLost, int32_t rank = 3) {
  return {ControlKind::kFailure, code, rank, std::move(text)};
}

std::string textAfterTravel(const std::string& text) {
  const Parsed parsed = parse(encodeControl(failure(text)), 4096);
  REQUIRE(parsed.messages.size() == 1);
  return parsed.messages[0].text;
}

}  // namespace

TEST_CASE("a frame header is little-endian, byte for byte as in docs/protocol.md") {
  const HeaderBytes bytes = encoded(sample());
  const uint8_t expected[] = {'R',  'C',  'F',  1,    1,    6,    2,    0x80, 8, 7, 6, 5,
                              4,    3,    2,    1,    0,    0,    0,    0x40, 0, 0, 0, 0,
                              0xFF, 0xFF, 0xFF, 0xFF, 0xD4, 0xC3, 0xB2, 0xA1, 0, 0, 4, 0};
  for (size_t i = 0; i < sizeof expected; ++i) {
    CHECK_MESSAGE(std::to_integer<int>(bytes[i]) == expected[i], "byte " << i);
  }
  CHECK(loadLittle<uint32_t>(bytes.data() + 36) == frameCheck(loadFrameWords(bytes)));
  CHECK(loadLittle<uint64_t>(bytes.data() + 40) == 0x1122334455667788);
  auto decoded = decodeFrame(bytes);
  REQUIRE(decoded.ok());
  CHECK(*decoded == sample());
}

TEST_CASE("a frame header with any one or two bits changed is refused") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  const auto flip = [](HeaderBytes& bytes, size_t bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  };
  constexpr size_t kBits = kFrameHeaderBytes * 8;
  int accepted = 0;
  HeaderBytes bytes = encoded(randomHeader(fuzz));
  REQUIRE(decodeFrame(bytes).ok());
  for (size_t one = 0; one < kBits; ++one) {
    flip(bytes, one);
    CHECK(decodeFrame(bytes).status().code() == Code::kProtocol);
    for (size_t two = one + 1; two < kBits; ++two) {
      flip(bytes, two);
      accepted += decodeFrame(bytes).ok() ? 1 : 0;
      flip(bytes, two);
    }
    flip(bytes, one);
  }
  CHECK(accepted == 0);
}

TEST_CASE("a bad frame header is described") {
  HeaderBytes bytes{};
  CHECK(decodeFrame(bytes).status().message().find("\"RCF\"") != std::string::npos);
  FrameHeader header = sample();
  header.length = kMaxSliceBytes;
  CHECK(decodeFrame(encoded(header)).ok());
  header.length = kMaxSliceBytes + 1;
  CHECK(decodeFrame(encoded(header)).status().message().find("1048577 bytes") != std::string::npos);
  header.length = 16;
  header.offset = UINT64_MAX - 16;
  CHECK(decodeFrame(encoded(header)).ok());
  header.offset = UINT64_MAX - 15;
  CHECK(decodeFrame(encoded(header)).status().message().find("ends beyond 2^64") !=
        std::string::npos);
  bytes = encoded(sample());
  bytes[9] ^= std::byte{1};
  CHECK(decodeFrame(bytes).status().message().find("check field") != std::string::npos);
}

TEST_CASE("decodeFrame refuses random and mutated bytes") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  int accepted = 0;
  while (fuzz.more()) {
    const HeaderBytes good = encoded(randomHeader(fuzz));
    const std::string text(reinterpret_cast<const char*>(good.data()), good.size());
    const std::string bad = fuzz.below(4) == 0 ? fuzz.bytes(text.size()) : fuzz.flip(text);
    accepted += decodeFrame(asBytes(bad).first<kFrameHeaderBytes>()).ok() ? 1 : 0;
  }
  CHECK(fuzz.tries() > 1000);
  CHECK(accepted == 0);
}

TEST_CASE("control messages travel whole, however their bytes are cut") {
  const std::vector<ControlMessage> sent = {
      {},
      failure("rank 3 (node7) closed its connection"),
      failure("", Code::kInternal, -1),
      {ControlKind::kQuestion, Code::kOk, -1, "", 1ull << 40},
      {ControlKind::kAnswer, Code::kOk, -1, "", 7, true},
      {ControlKind::kAnswer, Code::kOk, -1, "", 7, false},
      {ControlKind::kCall, Code::kOk, -1, "", 0, false, sample(), 1ull << 50, UINT64_MAX},
      failure(std::string(kMaxControlText, 'x'), Code::kInvalidArgument, 0),
      {ControlKind::kGoodbye, Code::kOk, -1, ""}};
  std::string stream;
  for (const ControlMessage& message : sent) {
    stream += encodeControl(message);
  }
  for (const size_t piece :
       {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{100}, stream.size()}) {
    const Parsed parsed = parse(stream, piece);
    CHECK(parsed.status.ok());
    CHECK(parsed.messages == sent);
  }
}

TEST_CASE("a control message is byte for byte as in docs/protocol.md") {
  using namespace std::string_literals;
  CHECK(encodeControl({ControlKind::kGoodbye, Code::kOk, -1, ""}) == "\x01\x00\x02"s);
  CHECK(encodeControl({ControlKind::kQuestion, Code::kOk, -1, "", 258}) ==
        "\x09\x00\x03\x02\x01\x00\x00\x00\x00\x00\x00"s);
  CHECK(encodeControl({ControlKind::kAnswer, Code::kOk, -1, "", 258, true}) ==
        "\x0A\x00\x04\x02\x01\x00\x00\x00\x00\x00\x00\x01"s);
  const HeaderBytes call = encoded(sample());
  CHECK(encodeControl({ControlKind::kCall, Code::kOk, -1, "", 0, false, sample(), 258, 3}) ==
        "\x41\x00\x05"s + std::string(reinterpret_cast<const char*>(call.data()), call.size()) +
            "\x02\x01\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00"s);
  CHECK(encodeControl(failure("hi", Code::kTimeout, 258)) == "\x08\x00\x01\x02\x02\x01\x00\x00hi"s);
}

TEST_CASE("what cannot be said in a failure is made sayable by the sender") {
  CHECK(parse(encodeControl(failure("x", Code::kOk)), 99).messages.at(0).code == Code::kInternal);
  CHECK(parse(encodeControl(failure("x", Code::kOk, -7)), 99).messages.at(0).rank == -1);
}

TEST_CASE("a failure's text is cut at a character and shown without control characters") {
  CHECK(textAfterTravel("Gerät 3 \xF0\x9F\x94\xA5\n\tline") == "Gerät 3 \xF0\x9F\x94\xA5\n\tline");
  CHECK(textAfterTravel("a\x1b[31mb\x07\x7f") == "a?[31mb??");
  CHECK(textAfterTravel("\xC2\x9B[31m") == "?[31m");
  CHECK(textAfterTravel(std::string("nul\0!", 5)) == "nul?!");
  // Overlong, surrogate, too large, cut short, stray.
  CHECK(textAfterTravel("\xC0\xAF|\xED\xA0\x80|\xF4\x90\x80\x80|\xE2\x82|\x80") ==
        "??|???|????|??|?");
  for (size_t pad = 0; pad < 4; ++pad) {
    const std::string start(kMaxControlText - pad, 'x');
    const std::string text = textAfterTravel(start + "\xF0\x9F\x94\xA5 more");
    CHECK(text == start);
  }
  CHECK(textAfterTravel(std::string(kMaxControlText - 4, 'x') + "\xF0\x9F\x94\xA5 more").size() ==
        kMaxControlText);
  // Not UTF-8 at all: the bound holds all the same.
  CHECK(textAfterTravel(std::string(5000, '\x80')).size() <= kMaxControlText);
}

TEST_CASE("a control stream that breaks a rule is refused for good") {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x00\x00"s, "length 0"},
      {"\x07\x08"s, "length 2055"},
      {"\xFF\xFF"s, "length 65535"},
      {"\x01\x00\x00"s, "kind 0"},
      {"\x01\x00\x06"s, "kind 6"},
      {"\x02\x00\x05\x00"s, "kind 5 with 2 bytes"},
      {"\x41\x00\x05"s + std::string(64, '\0'), "bad frame header"},
      {"\x01\x00\x01"s, "kind 1 with 1 bytes"},
      {"\x06\x00\x03\x00\x00\x00\x00\x00"s, "kind 3 with 6 bytes"},
      {"\x02\x00\x02\x00"s, "kind 2 with 2 bytes"},
      {"\x0A\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x02"s, "answer 2"},
      {"\x06\x00\x01\x00\x00\x00\x00\x00"s, "failure code 0"},
      {"\x06\x00\x01\x0A\x00\x00\x00\x00"s, "failure code 10"},
      {"\x06\x00\x01\x01\xFE\xFF\xFF\xFF"s, "rank -2"}};
  for (const auto& [bytes, why] : cases) {
    ControlParser parser;
    const std::string stream = encodeControl({}) + bytes + encodeControl({});
    auto rest = asBytes(stream);
    REQUIRE(parser.next(rest).ok());
    const Status first = parser.next(rest).status();
    CHECK(first.code() == Code::kProtocol);
    CHECK_MESSAGE(first.message().find(why) != std::string::npos, first.message());
    const std::string good = encodeControl({});
    auto later = asBytes(good);
    CHECK(parser.next(later).status().message() == first.message());
    CHECK(later.size() == good.size());
  }
}

TEST_CASE("the longest length in a prefix does not make the parser hold more than one message") {
  CHECK(sizeof(ControlParser) < kMaxControlText + 128);
}

TEST_CASE("ControlParser survives random and mutated streams and gives only lawful messages") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  uint64_t messages = 0;
  uint64_t refused = 0;
  while (fuzz.more()) {
    std::string stream;
    for (uint64_t i = 1 + fuzz.below(4); i > 0; --i) {
      stream +=
          encodeControl(fuzz.below(2) ? failure(fuzz.bytes(fuzz.below(40))) : ControlMessage());
    }
    const std::string bad =
        fuzz.below(4) == 0 ? fuzz.bytes(1 + fuzz.below(64)) : fuzz.mutate(stream);
    const Parsed parsed = parse(bad, 1 + fuzz.below(bad.size() + 1));
    refused += parsed.status.ok() ? 0 : 1;
    for (const ControlMessage& message : parsed.messages) {
      ++messages;
      const bool isFailure = message.kind == ControlKind::kFailure;
      REQUIRE((message.code != Code::kOk) == isFailure);
      REQUIRE(message.rank >= -1);
      REQUIRE(message.text.size() <= kMaxControlText);
      // What was lawful is so again after another journey.
      REQUIRE(parse(encodeControl(message), 4096).messages.at(0) == message);
    }
  }
  CHECK(messages > 1000);
  CHECK(refused > 1000);
}
