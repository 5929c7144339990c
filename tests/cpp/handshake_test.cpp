#include "net/handshake.h"

#include "fuzz.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

using namespace ringcomm;
using ringcomm::testing::Fuzz;

namespace {

constexpr size_t kHello = 92;
constexpr size_t kChallenge = 72;
constexpr size_t kProof = 40;
constexpr size_t kVerdict = 40;
constexpr size_t kRefusal = 8;
const std::string kSecret = "a secret of the job";

Hello helloOf() {
  return {.group = groupIdOf("default_pg"),
          .generation = 7,
          .fromRank = 2,
          .toRank = 1,
          .worldSize = 4,
          .lane = 3,
          .kind = ConnectionKind::kData};
}

GroupKey lookUp(const Hello& hello) {
  const Hello own = helloOf();
  if (hello.group != own.group) {
    return {Refusal::kUnknownGroup, {}};
  }
  if (hello.generation != own.generation) {
    return {Refusal::kWrongGeneration, {}};
  }
  if (hello.worldSize != own.worldSize) {
    return {Refusal::kWrongWorld, {}};
  }
  if (hello.toRank != own.toRank) {
    return {Refusal::kWrongRank, {}};
  }
  return {Refusal::kNone, kSecret};
}

// Feeds at most what the side wants, as a socket's driver does, in pieces of at most `piece`; gives
// what it left unread.
template <typename Side>
std::string drive(Side& side, std::string_view bytes, size_t piece, Status& status) {
  while (!bytes.empty() && side.bytesWanted() > 0) {
    const auto part = bytes.substr(0, std::min(piece, side.bytesWanted()));
    status = side.feed(asBytes(part));
    bytes.remove_prefix(part.size());
    if (!status.ok()) {
      break;
    }
  }
  return std::string(bytes);
}

// Both sides joined by a wire on which `tamper` may change message `index` (0: HELLO, 1: CHALLENGE
// or refusal, 2: PROOF, 3: VERDICT).
struct Wire {
  using Tamper = std::function<std::string(int index, std::string message)>;

  DialerHandshake dialer{helloOf(), kSecret};
  AcceptorHandshake acceptor{lookUp};
  size_t piece = 1000;
  Status dialerStatus;
  Status acceptorStatus;
  std::vector<std::string> sent;
  std::string leftToDialer;
  std::string leftToAcceptor;

  void run(const Tamper& tamper = [](int, std::string message) { return message; }) {
    REQUIRE(dialer.start().ok());
    for (int index = 0; index < 6; ++index) {
      const bool toAcceptor = index % 2 == 0;
      std::string message = toAcceptor ? dialer.takeOutput() : acceptor.takeOutput();
      if (message.empty()) {
        return;
      }
      sent.push_back(message);
      message = tamper(index, std::move(message));
      if (toAcceptor) {
        leftToAcceptor += drive(acceptor, message, piece, acceptorStatus);
      } else {
        leftToDialer += drive(dialer, message, piece, dialerStatus);
      }
    }
  }
};

bool contains(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

std::string withVersion(std::string message, uint8_t version) {
  message[4] = static_cast<char>(version);
  return message;
}

}  // namespace

TEST_CASE("two sides with one secret accept each other, in four messages of fixed size") {
  for (const size_t piece : {size_t{1}, size_t{5}, size_t{8}, size_t{1000}}) {
    Wire wire;
    wire.piece = piece;
    // Traffic that follows at once must stay unread.
    wire.run([](int index, std::string m) { return index >= 2 ? m + "payload" : m; });
    CHECK(wire.dialer.done());
    CHECK(wire.acceptor.done());
    CHECK(wire.dialer.bytesWanted() == 0);
    CHECK(wire.acceptor.bytesWanted() == 0);
    CHECK(wire.acceptor.hello() == helloOf());
    CHECK(wire.leftToAcceptor == "payload");
    CHECK(wire.leftToDialer == "payload");
    REQUIRE(wire.sent.size() == 4);
    CHECK(wire.sent[0].size() == kHello);
    CHECK(wire.sent[1].size() == kChallenge);
    CHECK(wire.sent[2].size() == kProof);
    CHECK(wire.sent[3].size() == kVerdict);
  }
}

TEST_CASE("the messages are byte for byte as in docs/protocol.md") {
  using namespace std::string_literals;
  Wire wire;
  wire.run();
  const GroupId group = groupIdOf("default_pg");
  const std::string groupText(reinterpret_cast<const char*>(group.data()), group.size());
  CHECK(wire.sent[0].substr(0, 60) == "RNGC\x01\x00\x01\x00"s + groupText +
                                          "\x07\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00"
                                          "\x04\x00\x00\x00\x03\x00\x01\x00"s);
  CHECK(wire.sent[1].substr(0, 8) == "RNGC\x01\x00\x02\x00"s);
  CHECK(wire.sent[2].substr(0, 8) == "RNGC\x01\x00\x03\x00"s);
  CHECK(wire.sent[3].substr(0, 8) == "RNGC\x01\x00\x04\x00"s);
  const std::string transcript = wire.sent[0] + wire.sent[1].substr(0, 40);
  const auto macIs = [&](const std::string& label, const std::string& rest, std::string mac) {
    const Digest digest = hmacSha256(asBytes(kSecret), asBytes(label + transcript + rest));
    return mac == std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
  };
  CHECK(macIs("ringcomm/acceptr", "", wire.sent[1].substr(40)));
  CHECK(macIs("ringcomm/dialer.", "", wire.sent[2].substr(8)));
  CHECK(macIs("ringcomm/verdict", wire.sent[3].substr(0, 8), wire.sent[3].substr(8)));
}

TEST_CASE("nonces are new for each connection") {
  Wire first;
  first.run();
  Wire second;
  second.run();
  for (size_t i = 0; i < 4; ++i) {
    CHECK(first.sent[i] != second.sent[i]);
  }
}

TEST_CASE("any one bit changed in any message is noticed by whom it reaches") {
  const size_t sizes[] = {kHello, kChallenge, kProof, kVerdict};
  for (int target = 0; target < 4; ++target) {
    for (size_t bit = 0; bit < sizes[target] * 8; ++bit) {
      Wire wire;
      wire.run([&](int index, std::string message) {
        if (index == target && message.size() == sizes[target]) {
          message[bit / 8] = static_cast<char>(message[bit / 8] ^ (1 << (bit % 8)));
        }
        return message;
      });
      INFO("message " << target << " bit " << bit);
      REQUIRE_FALSE(wire.dialer.done());
      // The acceptor has given its word by the time that its verdict is on the wire.
      REQUIRE(wire.acceptor.done() == (target == 3));
    }
  }
}

TEST_CASE("a message that is cut short leaves both sides unfinished, wanting the rest") {
  const size_t sizes[] = {kHello, kChallenge, kProof, kVerdict};
  for (int target = 0; target < 4; ++target) {
    for (size_t keep = 0; keep < sizes[target]; ++keep) {
      Wire wire;
      wire.run([&](int index, std::string message) {
        return index == target ? message.substr(0, keep) : message;
      });
      REQUIRE_FALSE(wire.dialer.done());
      REQUIRE(wire.acceptor.done() == (target == 3));
      const size_t wanted =
          target % 2 == 0 ? wire.acceptor.bytesWanted() : wire.dialer.bytesWanted();
      REQUIRE(wanted == (keep < 8 ? 8 - keep : sizes[target] - keep));
    }
  }
}

TEST_CASE("different secrets are refused, and both sides say so") {
  for (const std::string& secret : {std::string("another"), std::string(), kSecret + "x"}) {
    Wire wire;
    wire.dialer = DialerHandshake(helloOf(), secret);
    wire.run();
    CHECK(wire.dialerStatus.code() == Code::kRefused);
    CHECK(wire.dialerStatus.rank() == 1);
    CHECK(contains(wire.dialerStatus, "does not prove that it knows the group's secret"));
    CHECK(wire.acceptorStatus.code() == Code::kRefused);
    CHECK(contains(wire.acceptorStatus, "rank 2 of 4 to rank 1"));
    CHECK(contains(wire.acceptorStatus, "the secrets differ"));
    CHECK(wire.acceptor.refusal() == Refusal::kWrongSecret);
  }
}

TEST_CASE("a dialer that only pretends to know the secret is refused") {
  Wire wire;
  wire.run([](int index, std::string m) {
    return index == 2 ? m.substr(0, 8) + std::string(32, 'x') : m;
  });
  CHECK(wire.acceptorStatus.code() == Code::kRefused);
  CHECK(wire.acceptor.refusal() == Refusal::kWrongSecret);
  CHECK(wire.dialer.refusal() == Refusal::kWrongSecret);
  CHECK(wire.sent[3].size() == kRefusal);
}

TEST_CASE("replayed messages of an earlier connection are refused") {
  Wire earlier;
  earlier.run();
  REQUIRE(earlier.dialer.done());

  SUBCASE("the dialer's, to a new acceptor") {
    AcceptorHandshake acceptor(lookUp);
    Status status;
    drive(acceptor, earlier.sent[0], 1000, status);
    CHECK(acceptor.takeOutput().size() == kChallenge);
    drive(acceptor, earlier.sent[2], 1000, status);
    CHECK(status.code() == Code::kRefused);
    CHECK_FALSE(acceptor.done());
  }
  SUBCASE("the acceptor's, to a new dialer") {
    DialerHandshake dialer(helloOf(), kSecret);
    REQUIRE(dialer.start().ok());
    Status status;
    drive(dialer, earlier.sent[1], 1000, status);
    CHECK(status.code() == Code::kRefused);
    CHECK_FALSE(dialer.done());
  }
  SUBCASE("only the verdict") {
    Wire wire;
    wire.run([&](int index, std::string m) { return index == 3 ? earlier.sent[3] : m; });
    CHECK(wire.dialerStatus.code() == Code::kRefused);
    CHECK_FALSE(wire.dialer.done());
  }
}

TEST_CASE("a MAC sent back to where it came from proves nothing") {
  SUBCASE("the acceptor's as the dialer's proof") {
    Wire wire;
    wire.run([&](int index, std::string m) {
      return index == 2 ? m.substr(0, 8) + wire.sent[1].substr(40) : m;
    });
    CHECK(wire.acceptorStatus.code() == Code::kRefused);
    CHECK_FALSE(wire.acceptor.done());
  }
  SUBCASE("the dialer's as the verdict") {
    Wire wire;
    wire.run([&](int index, std::string m) {
      return index == 3 ? m.substr(0, 8) + wire.sent[2].substr(8) : m;
    });
    CHECK(wire.dialerStatus.code() == Code::kRefused);
    CHECK_FALSE(wire.dialer.done());
  }
  SUBCASE("a hello as a challenge") {
    DialerHandshake dialer(helloOf(), kSecret);
    REQUIRE(dialer.start().ok());
    const std::string echo = dialer.takeOutput();
    Status status;
    drive(dialer, echo, 1000, status);
    CHECK(status.code() == Code::kProtocol);
  }
  SUBCASE("a challenge fetched from a third rank that runs the same group") {
    // Somebody in between passes a hello for rank 1 on to rank 0, which has the secret too.
    AcceptorHandshake other([](const Hello& hello) {
      return hello.toRank == 0 ? GroupKey{Refusal::kNone, kSecret}
                               : GroupKey{Refusal::kWrongRank, {}};
    });
    DialerHandshake dialer(helloOf(), kSecret);
    REQUIRE(dialer.start().ok());
    std::string hello = dialer.takeOutput();
    hello[48] = 0;
    Status status;
    drive(other, hello, 1000, status);
    const std::string challenge = other.takeOutput();
    REQUIRE(challenge.size() == kChallenge);
    drive(dialer, challenge, 1000, status);
    CHECK(status.code() == Code::kRefused);
  }
}

TEST_CASE("an acceptor says why it does not know the dialer's group") {
  const auto refusalOf = [](const std::function<void(Hello&)>& change) {
    Hello hello = helloOf();
    change(hello);
    Wire wire;
    wire.dialer = DialerHandshake(hello, kSecret);
    wire.run();
    CHECK(wire.dialerStatus.code() == Code::kRefused);
    CHECK(wire.acceptorStatus.code() == Code::kRefused);
    CHECK(wire.dialer.refusal() == wire.acceptor.refusal());
    CHECK(contains(wire.dialerStatus, refusalText(wire.dialer.refusal())));
    CHECK(wire.sent.at(1).size() == kRefusal);
    return wire.dialer.refusal();
  };
  CHECK(refusalOf([](Hello& h) { h.group = groupIdOf("other"); }) == Refusal::kUnknownGroup);
  CHECK(refusalOf([](Hello& h) { h.generation = 8; }) == Refusal::kWrongGeneration);
  CHECK(refusalOf([](Hello& h) { h.worldSize = 5; }) == Refusal::kWrongWorld);
  CHECK(refusalOf([](Hello& h) { h.toRank = 3; }) == Refusal::kWrongRank);
}

TEST_CASE("the admission has the last word about a proven hello, and the dialer hears it") {
  int asked = 0;
  Wire wire;
  wire.acceptor = AcceptorHandshake(lookUp, [&](const Hello& hello) {
    ++asked;
    CHECK(hello == helloOf());
    return Refusal::kDuplicate;
  });
  wire.run();
  CHECK(asked == 1);
  CHECK(wire.sent.at(3).size() == kVerdict);
  CHECK(wire.dialer.refusal() == Refusal::kDuplicate);
  CHECK(wire.dialerStatus.code() == Code::kRefused);
  CHECK(wire.acceptorStatus.code() == Code::kRefused);
}

TEST_CASE("another version is named on both sides") {
  SUBCASE("of the dialer") {
    Wire wire;
    wire.run([](int index, std::string m) { return index == 0 ? withVersion(m, 2) : m; });
    CHECK(contains(wire.acceptorStatus, "peer speaks protocol 2, this side 1"));
    CHECK(wire.acceptor.refusal() == Refusal::kVersion);
    CHECK(wire.sent.at(1).size() == kRefusal);
    // The dialer of version 2 reads the acceptor's version out of the refusal.
    CHECK(wire.sent[1][4] == 1);
  }
  SUBCASE("of the acceptor") {
    Wire wire;
    wire.run([](int index, std::string m) {
      return index == 1 ? withVersion(m.substr(0, kRefusal), 2) : m;
    });
    CHECK(contains(wire.dialerStatus, "peer speaks protocol 2, this side 1"));
    CHECK(wire.dialerStatus.code() == Code::kProtocol);
    CHECK(wire.dialer.refusal() == Refusal::kVersion);
  }
}

TEST_CASE("a stranger gets no answer, and its first wrong byte is enough") {
  using namespace std::string_literals;
  for (const std::string& knock :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n"s, "\x16\x03\x01\x02\x00\x01\x00"s, "SSH-2.0-x\r\n"s,
        "\0\0\0\0\0\0\0\0"s, "RNGX"s, "X"s, "RX"s}) {
    AcceptorHandshake acceptor(lookUp);
    Status status;
    drive(acceptor, knock, 1, status);
    CHECK(status.code() == Code::kProtocol);
    CHECK(acceptor.takeOutput().empty());
    CHECK(acceptor.bytesWanted() == 0);
  }
}

TEST_CASE("a dialer names what answers in another language") {
  DialerHandshake dialer(helloOf(), kSecret);
  REQUIRE(dialer.start().ok());
  Status status;
  drive(dialer, "HTTP/1.1 400 Bad Request\r\n", 1, status);
  CHECK(status.code() == Code::kProtocol);
  CHECK(contains(status, "no ringcomm"));
}

TEST_CASE("a senseless hello is neither sent nor looked up") {
  const std::vector<std::function<void(Hello&)>> changes = {
      [](Hello& h) { h.worldSize = 1; }, [](Hello& h) { h.worldSize = -4; },
      [](Hello& h) { h.fromRank = -1; }, [](Hello& h) { h.fromRank = 4; },
      [](Hello& h) { h.toRank = 4; },    [](Hello& h) { h.toRank = INT32_MIN; },
      [](Hello& h) { h.toRank = 2; },    [](Hello& h) { h.kind = static_cast<ConnectionKind>(4); },
  };
  for (const auto& change : changes) {
    Hello hello = helloOf();
    change(hello);
    CHECK(DialerHandshake(hello, kSecret).start().code() == Code::kInvalidArgument);
    DialerHandshake honest(helloOf(), kSecret);
    REQUIRE(honest.start().ok());
    std::string message = honest.takeOutput();
    const uint32_t fields[] = {static_cast<uint32_t>(hello.fromRank),
                               static_cast<uint32_t>(hello.toRank),
                               static_cast<uint32_t>(hello.worldSize)};
    for (size_t i = 0; i < 12; ++i) {
      message[44 + i] = static_cast<char>(fields[i / 4] >> (8 * (i % 4)));
    }
    message[58] = static_cast<char>(hello.kind);
    bool lookedUp = false;
    AcceptorHandshake acceptor([&](const Hello&) {
      lookedUp = true;
      return GroupKey{Refusal::kNone, kSecret};
    });
    Status status;
    drive(acceptor, message, 1000, status);
    CHECK(status.code() == Code::kProtocol);
    CHECK(acceptor.refusal() == Refusal::kMalformed);
    CHECK_FALSE(lookedUp);
  }
}

TEST_CASE("misuse by the driver is an internal error, not an overrun") {
  AcceptorHandshake acceptor(lookUp);
  CHECK(acceptor.feed(asBytes(std::string(500, 'R'))).code() == Code::kInternal);
  CHECK(acceptor.bytesWanted() == 0);
  DialerHandshake dialer(helloOf(), kSecret);
  CHECK(dialer.feed(asBytes("x")).code() == Code::kInternal);
  DialerHandshake twice(helloOf(), kSecret);
  CHECK(twice.start().ok());
  CHECK(twice.start().code() == Code::kInternal);
}

TEST_CASE("both machines survive random and mutated bytes and never accept them") {
  Fuzz fuzz;
  INFO("seed " << fuzz.seed());
  int finished = 0;
  int tampered = 0;
  while (fuzz.more()) {
    const auto target = static_cast<int>(fuzz.below(4));
    Wire wire;
    wire.piece = 1 + fuzz.below(100);
    wire.run([&](int index, std::string message) {
      if (index != target) {
        return message;
      }
      ++tampered;
      std::string changed = fuzz.below(8) == 0 ? fuzz.bytes(200) : fuzz.mutate(message);
      // Whole message first, something behind it: that would be no tampering with the handshake.
      while (changed.starts_with(message)) {
        changed = fuzz.flip(message);
      }
      return changed;
    });
    // Tampering with the verdict comes after the acceptor's word; all else stops both.
    finished += wire.dialer.done() || (target < 3 && wire.acceptor.done()) ? 1 : 0;
  }
  CHECK(tampered > 200);
  CHECK(finished == 0);
}
