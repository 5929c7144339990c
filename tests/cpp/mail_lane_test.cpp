#include "engine/mail_lane.h"

#include "looping.h"
#include "sockets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <sys/socket.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t kSlice = 4096;
constexpr uint64_t kEager = MailLane::kEagerBytes;
constexpr uint64_t kCredit = MailLane::kCreditBytes;
constexpr uint64_t kCost = MailLane::kMessageCost;

// Keeps whatever arrives, as a mailbox does that nobody receives from. On the loop, except for the
// atomics.
class Keeper final : public MailObserver {
 public:
  struct Message {
    MailHead head;
    bool announced = false;
    bool whole = false;
    std::vector<std::byte> bytes;
  };

  std::byte* arriving(MailLane&, const MailHead& head, bool announced) noexcept override {
    messages.push_back({head, announced, false, std::vector<std::byte>(head.bytes())});
    ++begun;
    return messages.back().bytes.data();
  }
  void arrived(MailLane&, uint64_t id) noexcept override {
    messages[id].whole = true;
    ++whole;
  }
  void sent(const std::shared_ptr<Op>& op) noexcept override {
    op->completeShare({});
    ++sends;
  }
  void mailLost(MailLane&, int error) noexcept override { lost = error; }
  void mailViolated(MailLane&, const Status& why) noexcept override {
    violation = why.code();
    text = why.message();
    ++violations;
  }

  std::deque<Message> messages;  // by id: ids are counted
  std::atomic<int> begun{0};
  std::atomic<int> whole{0};
  std::atomic<int> sends{0};
  std::atomic<int> lost{0};
  std::atomic<int> violations{0};
  Code violation = Code::kOk;
  std::string text;
};

std::shared_ptr<Op> sendOp(std::vector<std::byte>& data, int tag = 0) {
  OpDesc desc;
  desc.transfer = OpDesc::Transfer::kSend;
  desc.peer = 1;
  desc.tag = tag;
  desc.count = data.size();
  desc.buffers = {{data.data(), data.size()}};
  desc.timeout = 30s;
  return std::make_shared<Op>(desc, 0, Clock::now());
}

std::vector<std::byte> pattern(size_t bytes, unsigned salt) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<std::byte>(i * 31 + i / 251 + salt);
  }
  return made;
}

struct Frame {
  FrameHeader header;
  std::string payload;
};

std::string frameOf(FrameHeader header, const std::string& payload = "") {
  std::array<std::byte, kFrameHeaderBytes> bytes;
  encode(header, bytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + payload;
}

FrameHeader headerOf(MailKind kind, uint64_t id, uint64_t count, uint32_t length) {
  FrameHeader header;
  header.collective = static_cast<uint8_t>(kind);
  header.dtype = static_cast<uint8_t>(DType::kByte);
  header.sequence = id;
  header.count = count;
  header.root = 0;
  header.length = length;
  return header;
}

std::string eager(uint64_t id, size_t bytes) {
  return frameOf(headerOf(MailKind::kEager, id, bytes, static_cast<uint32_t>(bytes)),
                 std::string(bytes, 'e'));
}

// A lane on the loop with the other end as a plain socket.
class Fixture {
 public:
  Fixture() {
    Pair pair = unixPair();
    far = std::move(pair.b);
    loop.run([&] {
      lane = std::make_unique<MailLane>(*loop, keeper, 1, kSlice);
      REQUIRE(lane->attach(std::move(pair.a)).ok());
    });
  }
  ~Fixture() {
    loop.run([&] { lane.reset(); });
  }

  // Of a copy, which lives as long as the loop may read it.
  void send(const std::vector<std::byte>& data, int tag = 0) {
    std::vector<std::byte>& copy = kept.emplace_back(data);
    loop.run([&] { lane->send(sendOp(copy, tag)); });
  }
  void give(const std::string& bytes) {
    size_t done = 0;
    CHECK(eventually(5s, [&] {
      const ssize_t now =
          ::send(far.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      done += now > 0 ? static_cast<size_t>(now) : 0;
      return done == bytes.size() || keeper.violations > 0;
    }));
  }
  std::string take(size_t bytes) {
    std::string all(bytes, '\0');
    size_t done = 0;
    CHECK(eventually(5s, [&] {
      const ssize_t now = ::recv(far.get(), all.data() + done, bytes - done, MSG_DONTWAIT);
      done += now > 0 ? static_cast<size_t>(now) : 0;
      return done == bytes;
    }));
    return all;
  }
  Frame takeFrame() {
    const std::string head = take(kFrameHeaderBytes);
    auto decoded = decodeFrame(std::span<const std::byte, kFrameHeaderBytes>(
        reinterpret_cast<const std::byte*>(head.data()), kFrameHeaderBytes));
    REQUIRE(decoded.ok());
    return {*decoded, take((*decoded).length)};
  }
  // Whether nothing comes for a while.
  bool silent() const {
    std::this_thread::sleep_for(30ms);
    char byte = 0;
    return ::recv(far.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
  }
  // That the lane takes no more, having said why, once.
  void checkViolated() {
    REQUIRE(eventually(2s, [&] { return keeper.violations > 0; }));
    loop.run([] {});
    CHECK(keeper.violation == Code::kProtocol);
    CHECK(keeper.text.find("makes no sense") != std::string::npos);
    const int begun = keeper.begun;
    give(eager(static_cast<uint64_t>(begun), 100) + std::string(5000, 'x'));
    std::this_thread::sleep_for(10ms);
    loop.run([] {});
    CHECK(keeper.begun == begun);
    CHECK(keeper.violations == 1);
  }

  std::deque<std::vector<std::byte>> kept;
  TestLoop loop;
  Keeper keeper;
  UniqueFd far;
  std::unique_ptr<MailLane> lane;
};

MailKind kindOf(const Frame& frame) { return static_cast<MailKind>(frame.header.collective); }

}  // namespace

TEST_CASE("a small message goes out whole, with its head, and is sent then") {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{kEager}}) {
    CAPTURE(bytes);
    Fixture fixture;
    auto data = pattern(bytes, 3);
    fixture.send(data, 12);
    const Frame frame = fixture.takeFrame();
    CHECK(kindOf(frame) == MailKind::kEager);
    CHECK(frame.header.root == 12);
    CHECK(frame.header.count == bytes);
    CHECK(std::equal(data.begin(), data.end(),
                     reinterpret_cast<const std::byte*>(frame.payload.data())));
    CHECK(eventually(1s, [&] { return fixture.keeper.sends == 1; }));
  }
}

TEST_CASE("a large message is announced, and sent in slices once it is asked for") {
  Fixture fixture;
  auto data = pattern(kEager + 1, 5);
  fixture.send(data, -4);
  const Frame announced = fixture.takeFrame();
  CHECK(kindOf(announced) == MailKind::kAnnounce);
  CHECK(announced.header.count == data.size());
  CHECK(announced.header.root == -4);
  CHECK(fixture.silent());
  CHECK(fixture.keeper.sends == 0);
  fixture.give(frameOf(headerOf(MailKind::kRequest, announced.header.sequence, 0, 0)));
  uint64_t at = 0;
  while (at < data.size()) {
    const Frame slice = fixture.takeFrame();
    REQUIRE(kindOf(slice) == MailKind::kSlice);
    CHECK(slice.header.offset == at);
    REQUIRE(slice.payload.size() == std::min<uint64_t>(kSlice, data.size() - at));
    CHECK(std::memcmp(slice.payload.data(), data.data() + at, slice.payload.size()) == 0);
    at += slice.payload.size();
  }
  CHECK(eventually(1s, [&] { return fixture.keeper.sends == 1; }));
}

TEST_CASE("slices of two large messages take turns, and a small one goes between them") {
  Fixture fixture;
  auto first = pattern(4'000'000, 1);
  auto second = pattern(4'000'000, 2);
  auto small = pattern(100, 3);
  fixture.send(first);
  fixture.send(second);
  const uint64_t ids[2] = {fixture.takeFrame().header.sequence,
                           fixture.takeFrame().header.sequence};
  fixture.give(frameOf(headerOf(MailKind::kRequest, ids[0], 0, 0)) +
               frameOf(headerOf(MailKind::kRequest, ids[1], 0, 0)));
  // The socket's buffer is full long before the end: what follows is decided frame by frame.
  const Frame start = fixture.takeFrame();
  CHECK(kindOf(start) == MailKind::kSlice);
  fixture.send(small);
  std::map<uint64_t, int> slices;
  int beforeSmall = -1;
  uint64_t last = start.header.sequence;
  int runs = 0;
  const int total = 2 * static_cast<int>((first.size() + kSlice - 1) / kSlice);
  for (int seen = 1; seen < total;) {
    const Frame frame = fixture.takeFrame();
    if (kindOf(frame) == MailKind::kEager) {
      beforeSmall = seen;
      continue;
    }
    ++seen;
    ++slices[frame.header.sequence];
    runs += frame.header.sequence == last ? 1 : 0;
    last = frame.header.sequence;
  }
  CHECK(slices.size() == 2);
  CHECK(beforeSmall >= 0);
  CHECK(beforeSmall < total / 2);
  CHECK(runs < 8);  // both were asked for at almost the same time
}

TEST_CASE("a message that nobody asks for holds up nothing behind it") {
  Fixture fixture;
  auto large = pattern(1'000'000, 1);
  auto small = pattern(100, 2);
  fixture.send(large);
  fixture.send(small);
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kAnnounce);
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kEager);
}

TEST_CASE("no more is sent unasked than there is credit for, and credit comes back") {
  Fixture fixture;
  auto data = pattern(40'000, 1);
  const uint64_t fits = kCredit / (data.size() + kCost);
  for (uint64_t i = 0; i < fits + 3; ++i) {
    fixture.send(data);
  }
  uint64_t unasked = 0;
  std::vector<uint64_t> announced;
  for (uint64_t i = 0; i < fits + 3; ++i) {
    const Frame frame = fixture.takeFrame();
    if (kindOf(frame) == MailKind::kEager) {
      unasked += frame.payload.size();
      CHECK(announced.empty());
    } else {
      announced.push_back(frame.header.sequence);
    }
  }
  CHECK(unasked == fits * data.size());
  CHECK(unasked <= kCredit);
  CHECK(announced.size() == 3);
  // A small one still fits into the rest.
  std::vector<std::byte> nothing;
  fixture.send(nothing);
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kEager);
  // Those that are asked for take none either.
  fixture.give(frameOf(headerOf(MailKind::kRequest, announced[0], 0, 0)));
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kSlice);
  fixture.take((data.size() - kSlice) + (data.size() - 1) / kSlice * kFrameHeaderBytes);
  fixture.give(frameOf(headerOf(MailKind::kCredit, 0, data.size() + kCost, 0)));
  CHECK(fixture.silent());
  fixture.send(data);
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kEager);
  fixture.send(data);
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kAnnounce);
}

TEST_CASE("messages of nothing cost credit, too, and without any are announced and asked for") {
  Fixture fixture;
  std::vector<std::byte> nothing;
  constexpr uint64_t kFits = kCredit / kCost;
  for (uint64_t i = 0; i < kFits; ++i) {
    fixture.send(nothing);
    CHECK(kindOf(fixture.takeFrame()) == MailKind::kEager);
  }
  fixture.send(nothing);
  const Frame announced = fixture.takeFrame();
  CHECK(kindOf(announced) == MailKind::kAnnounce);
  fixture.give(frameOf(headerOf(MailKind::kRequest, announced.header.sequence, 0, 0)));
  const Frame slice = fixture.takeFrame();
  CHECK((kindOf(slice) == MailKind::kSlice && slice.header.length == 0));
  CHECK(eventually(2s, [&] { return fixture.keeper.sends == static_cast<int>(kFits) + 1; }));
}

TEST_CASE("a message of nothing that was announced is whole with its one slice") {
  Fixture fixture;
  fixture.give(frameOf(headerOf(MailKind::kAnnounce, 0, 0, 0)));
  REQUIRE(eventually(2s, [&] { return fixture.keeper.begun == 1; }));
  fixture.loop.run([&] { fixture.lane->request(fixture.keeper.messages[0].head, nullptr); });
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kRequest);
  fixture.give(frameOf(headerOf(MailKind::kSlice, 0, 0, 0)));
  CHECK(eventually(2s, [&] { return fixture.keeper.whole == 1; }));
}

TEST_CASE("credit is given back in batches that never let the peer run dry") {
  Fixture fixture;
  uint64_t given = 0;
  uint64_t id = 0;
  uint64_t credited = 0;
  for (int round = 0; round < 200; ++round) {
    fixture.give(eager(id++, kEager / 2));
    given += kEager / 2 + kCost;
    CHECK(eventually(2s, [&] { return fixture.keeper.whole == static_cast<int>(id); }));
    fixture.loop.run([&] { fixture.lane->giveCredit(kEager / 2); });
    if (given - credited >= kCredit / 4) {
      const Frame frame = fixture.takeFrame();
      CHECK(kindOf(frame) == MailKind::kCredit);
      credited += frame.header.count;
    }
    CHECK(given - credited < kCredit / 4);
  }
  CHECK(fixture.keeper.violations == 0);
}

TEST_CASE("a peer that sends more unasked than it has credit for is in error") {
  Fixture fixture;
  uint64_t id = 0;
  for (; (id + 1) * (kEager + kCost) <= kCredit; ++id) {
    fixture.give(eager(id, kEager));
  }
  CHECK(eventually(2s, [&] { return fixture.keeper.whole == static_cast<int>(id); }));
  CHECK(fixture.keeper.violations == 0);
  fixture.give(eager(id, kEager));
  fixture.checkViolated();
}

TEST_CASE("messages are taken in whatever pieces they arrive") {
  Fixture fixture;
  const std::string all = eager(0, 3) + eager(1, 0) + eager(2, 700);
  for (const char byte : all) {
    fixture.give(std::string(1, byte));
  }
  CHECK(eventually(5s, [&] { return fixture.keeper.whole == 3; }));
  fixture.loop.run([&] {
    CHECK(fixture.keeper.messages[2].bytes == std::vector<std::byte>(700, std::byte{'e'}));
  });
}

TEST_CASE("slices land where the receiver said") {
  Fixture fixture;
  std::vector<std::byte> target(10'000);
  fixture.give(frameOf(headerOf(MailKind::kAnnounce, 0, 10'000, 0)));
  REQUIRE(eventually(2s, [&] { return fixture.keeper.begun == 1; }));
  fixture.loop.run([&] { fixture.lane->request(fixture.keeper.messages[0].head, target.data()); });
  CHECK(kindOf(fixture.takeFrame()) == MailKind::kRequest);
  for (uint64_t at = 0; at < 10'000; at += 2'500) {
    FrameHeader header = headerOf(MailKind::kSlice, 0, 0, 2'500);
    header.offset = at;
    CHECK(fixture.keeper.whole == 0);
    fixture.give(frameOf(header, std::string(2'500, static_cast<char>('a' + at / 2'500))));
  }
  CHECK(eventually(2s, [&] { return fixture.keeper.whole == 1; }));
  CHECK(target[2'499] == std::byte{'a'});
  CHECK(target[2'500] == std::byte{'b'});
  CHECK(target[9'999] == std::byte{'d'});
}

TEST_CASE("frames that make no sense are protocol errors, and nothing is taken after them") {
  FrameHeader wrongType = headerOf(MailKind::kEager, 0, 0, 0);
  wrongType.dtype = 0xFF;
  FrameHeader overflow = headerOf(MailKind::kAnnounce, 0, uint64_t{1} << 62, 0);
  overflow.dtype = static_cast<uint8_t>(DType::kComplex128);
  FrameHeader collective = headerOf(MailKind::kEager, 0, 0, 0);
  collective.collective = static_cast<uint8_t>(Collective::kAllReduce);
  const std::string payload(5'000, 'x');
  const std::vector<std::pair<const char*, std::string>> broken = {
      {"eager, too short", frameOf(headerOf(MailKind::kEager, 0, 10, 9), payload)},
      {"eager, too long", frameOf(headerOf(MailKind::kEager, 0, 10, 5'000), payload)},
      {"eager, too large", frameOf(headerOf(MailKind::kEager, 0, kEager + 1, kEager + 1), payload)},
      {"eager, number", frameOf(headerOf(MailKind::kEager, 1, 4, 4), payload)},
      {"eager, type", frameOf(wrongType)},
      {"announce, bytes", frameOf(headerOf(MailKind::kAnnounce, 0, 100'000, 5'000), payload)},
      {"announce, endless", frameOf(overflow)},
      {"announce, twice", frameOf(headerOf(MailKind::kAnnounce, 0, 100'000, 0)) +
                              frameOf(headerOf(MailKind::kAnnounce, 0, 100'000, 0))},
      {"request of nothing", frameOf(headerOf(MailKind::kRequest, 0, 0, 0))},
      {"slice of nothing", frameOf(headerOf(MailKind::kSlice, 0, 0, 5'000), payload)},
      {"slice before its request", frameOf(headerOf(MailKind::kAnnounce, 0, 100'000, 0)) +
                                       frameOf(headerOf(MailKind::kSlice, 0, 0, 5'000), payload)},
      {"credit for nothing", frameOf(headerOf(MailKind::kCredit, 0, 1, 0))},
      {"credit that wraps", frameOf(headerOf(MailKind::kCredit, 0, UINT64_MAX, 0))},
      {"credit with bytes", frameOf(headerOf(MailKind::kCredit, 0, 0, 5'000), payload)},
      {"a collective", frameOf(collective)},
  };
  for (const auto& [what, bytes] : broken) {
    CAPTURE(what);
    Fixture fixture;
    fixture.give(bytes);
    fixture.checkViolated();
  }
}

TEST_CASE("slices out of place are protocol errors and are not written") {
  for (int broken = 0; broken < 4; ++broken) {
    CAPTURE(broken);
    Fixture fixture;
    std::vector<std::byte> target(10'000);
    fixture.give(frameOf(headerOf(MailKind::kAnnounce, 0, 10'000, 0)));
    REQUIRE(eventually(2s, [&] { return fixture.keeper.begun == 1; }));
    fixture.loop.run(
        [&] { fixture.lane->request(fixture.keeper.messages[0].head, target.data()); });
    FrameHeader header = headerOf(MailKind::kSlice, broken == 0 ? 1 : 0, 0, 100);
    header.offset = broken == 1 ? 100 : 0;
    header.length = broken == 2 ? 10'001 : broken == 3 ? 0 : 100;
    fixture.give(frameOf(header, std::string(header.length, 'x')));
    fixture.checkViolated();
    CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{}; }));
  }
}

TEST_CASE("bytes that are no frame are a protocol error") {
  Fixture fixture;
  fixture.give(std::string(kFrameHeaderBytes, 'x'));
  REQUIRE(eventually(2s, [&] { return fixture.keeper.violations == 1; }));
  CHECK(fixture.keeper.violation == Code::kProtocol);
}

TEST_CASE("the end of a lane is told, and told again to who looks again") {
  Fixture fixture;
  fixture.give(eager(0, 100));
  fixture.far.reset();
  CHECK(eventually(2s, [&] { return fixture.keeper.lost == kLaneEnded; }));
  CHECK(fixture.keeper.whole == 1);  // what came before it is not lost
  fixture.keeper.lost = 0;
  fixture.loop.run([&] {
    CHECK(fixture.lane->ended());
    fixture.lane->look();
  });
  CHECK(eventually(2s, [&] { return fixture.keeper.lost == kLaneEnded; }));
}

TEST_CASE("what is sent before there is a connection goes out when there is one") {
  TestLoop loop;
  Keeper keeper;
  std::unique_ptr<MailLane> lane;
  auto data = pattern(10, 1);
  Pair pair = unixPair();
  loop.run([&] {
    lane = std::make_unique<MailLane>(*loop, keeper, 1, kSlice);
    lane->send(sendOp(data));
    CHECK_FALSE(lane->connected());
  });
  loop.run([&] { REQUIRE(lane->attach(std::move(pair.a)).ok()); });
  CHECK(eventually(2s, [&] { return keeper.sends == 1; }));
  char buffer[100];
  CHECK(::recv(pair.b.get(), buffer, sizeof buffer, 0) ==
        static_cast<ssize_t>(kFrameHeaderBytes + data.size()));
  loop.run([&] { lane.reset(); });
}
