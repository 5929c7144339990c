#include "engine/mailbox.h"

#include "cluster.h"
#include "looping.h"
#include "messages.h"
#include "sockets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>

#include <sys/socket.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

// A mailbox of rank 0 of 2 whose peer is a plain socket.
class Fixture final : public ShareHost {
 public:
  explicit Fixture(int world = 2) {
    Pair pair = unixPair();
    far = std::move(pair.b);
    loop.run([&] {
      mailbox = std::make_unique<Mailbox>(Mailbox::Setup{this, &*loop, 0, world, 4096});
      mailbox->attach(1, std::move(pair.a));
    });
  }
  ~Fixture() {
    loop.run([&] {
      mailbox->abandon({Code::kAborted, "over"});
      mailbox.reset();
    });
  }
  std::shared_ptr<Op> start(const OpDesc& desc) {
    auto op = std::make_shared<Op>(desc, 0, Clock::now());
    loop.run([&] { mailbox->start(op); });
    return op;
  }
  void give(uint64_t id, const std::string& payload, MailKind kind = MailKind::kEager) {
    FrameHeader header;
    header.collective = static_cast<uint8_t>(kind);
    header.dtype = static_cast<uint8_t>(DType::kUInt8);
    header.sequence = id;
    header.count = payload.size();
    header.root = 0;
    header.length = kind == MailKind::kAnnounce ? 0 : static_cast<uint32_t>(payload.size());
    std::array<std::byte, kFrameHeaderBytes> bytes;
    encode(header, bytes);
    std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    all += kind == MailKind::kAnnounce ? "" : payload;
    CHECK(::send(far.get(), all.data(), all.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(all.size()));
  }
  bool failed(Code code) {
    return eventually(2s, [&] { return loop.run([&] { return cause.code() == code; }); });
  }

  void wantPeer(int, TimePoint) override {}
  void wantMailFrom(int, TimePoint) override {}
  void laneLost(int peer, int) override { lost = peer; }
  void fail(const Status& status) override {
    if (cause.ok()) {
      cause = status;
      (*loop).post([this, status] { mailbox->abandon(status); });  // as a group does
    }
  }
  std::shared_ptr<Op> called(uint64_t) const override { return nullptr; }
  void compareCalls(int, const std::shared_ptr<Op>&, const Status&) override {}
  void timedOut(int, const std::shared_ptr<Op>&, const Status&) override {}
  std::string peerName(int peer) const override { return rankName(peer); }

  TestLoop loop;
  UniqueFd far;
  std::unique_ptr<Mailbox> mailbox;
  Status cause;  // on the loop
  std::atomic<int> lost{-1};
};

bool allDone(const std::vector<std::shared_ptr<Op>>& ops) {
  return eventually(2s, [&] {
    return std::all_of(ops.begin(), ops.end(), [](const auto& op) { return op->done(); });
  });
}

}  // namespace

TEST_CASE("a message finds the first receive that fits, and a receive the first message") {
  Fixture fixture;
  Bytes any(3);
  Bytes named(3);
  const auto first = fixture.start(receiveInto(any, kAnyPeer));
  const auto second = fixture.start(receiveInto(named, 1));
  fixture.give(0, "one");
  fixture.give(1, "two");
  REQUIRE(allDone({first, second}));
  CHECK(std::memcmp(any.data(), "one", 3) == 0);
  CHECK(std::memcmp(named.data(), "two", 3) == 0);
  CHECK(first->source() == 1);
  fixture.give(2, "six");
  fixture.give(3, "ten");
  std::this_thread::sleep_for(10ms);
  REQUIRE(
      allDone({fixture.start(receiveInto(any, 1)), fixture.start(receiveInto(named, kAnyPeer))}));
  CHECK(std::memcmp(any.data(), "six", 3) == 0);
  CHECK(std::memcmp(named.data(), "ten", 3) == 0);
}

TEST_CASE("messages to itself are copied when both sides are there") {
  Fixture fixture;
  Bytes data = message(1000, 1);
  Bytes target(1000);
  const auto send = fixture.start(sendOf(data, 0, 5));
  CHECK_FALSE(send->done());
  const auto other = fixture.start(receiveInto(target, 0, 6));
  CHECK_FALSE(other->done());
  const auto receive = fixture.start(receiveInto(target, kAnyPeer, 5));
  REQUIRE(allDone({send, receive}));
  CHECK(receive->source() == 0);
  CHECK(target == data);
  CHECK_FALSE(other->done());
}

TEST_CASE("a message that does not fit its receive ends the group, whoever is first") {
  for (const bool receiveFirst : {true, false}) {
    for (const MailKind kind : {MailKind::kEager, MailKind::kAnnounce}) {
      Fixture fixture;
      Bytes target(4);
      std::shared_ptr<Op> op;
      if (receiveFirst) {
        op = fixture.start(receiveInto(target, 1));
      }
      fixture.give(0, "three", kind);
      std::this_thread::sleep_for(5ms);
      if (!receiveFirst) {
        op = fixture.start(receiveInto(target, 1));
      }
      REQUIRE(allDone({op}));
      CHECK(op->status().code() == Code::kMismatch);
      CHECK(op->status().message() ==
            "rank 1 sends 5 x uint8 (tag 0) to rank 0, which receives 4 x uint8");
      CHECK(target == Bytes(4));
    }
  }
}

TEST_CASE("a peer that breaks the protocol is named") {
  Fixture fixture;
  Bytes target(4);
  const auto op = fixture.start(receiveInto(target, 1));
  fixture.give(7, "four");
  REQUIRE(allDone({op}));
  CHECK(op->status().code() == Code::kProtocol);
  CHECK(op->status().message().find("rank 1: ") == 0);
}

TEST_CASE("the end of a lane matters to who needs the peer, also later") {
  Fixture fixture;
  fixture.give(0, "last");
  std::this_thread::sleep_for(5ms);
  fixture.far.reset();
  std::this_thread::sleep_for(10ms);
  CHECK(fixture.lost == -1);
  Bytes target(4);
  REQUIRE(allDone({fixture.start(receiveInto(target, 1))}));
  CHECK(std::memcmp(target.data(), "last", 4) == 0);
  const auto more = fixture.start(receiveInto(target, kAnyPeer));
  CHECK(eventually(2s, [&] { return fixture.lost == 1; }));
  CHECK_FALSE(more->done());
}

TEST_CASE("a transfer that runs out of time names whom it waits for") {
  Fixture fixture;
  Bytes target(4);
  OpDesc desc = receiveInto(target, 1, 3);
  desc.timeout = 50ms;
  const auto op = fixture.start(desc);
  REQUIRE(allDone({op}));
  CHECK(op->status().code() == Code::kTimeout);
  CHECK(op->status().message() ==
        "Timed out waiting 50ms for recv from rank 1 (4 x uint8, tag 3) on rank 0: rank 1 has not "
        "sent it");
}

TEST_CASE("what is started after the end gets its cause") {
  Fixture fixture;
  Bytes target(4);
  const auto before = fixture.start(receiveInto(target, 1));
  fixture.loop.run([&] { fixture.mailbox->abandon({Code::kPeerLost, "gone"}); });
  const auto after = fixture.start(receiveInto(target, 1));
  CHECK(before->status().message() == "gone");
  CHECK(after->status().message() == "gone");
}

TEST_CASE("a peer that cannot be reached ends who needs it, and others when nobody else is left") {
  const Status gone(Code::kPeerLost, "rank 2 has left", 2);
  for (const bool laneEndsFirst : {false, true}) {
    Fixture fixture(3);
    const auto unreachable = [&] {
      fixture.loop.run([&] { fixture.mailbox->unreachable(2, gone); });
    };
    Bytes target(4);
    if (!laneEndsFirst) {
      const auto any = fixture.start(receiveInto(target, kAnyPeer));
      unreachable();
      fixture.give(0, "four");
      REQUIRE(allDone({any}));
      CHECK(any->status().ok());
      CHECK(any->source() == 1);
      const auto later = fixture.start(receiveInto(target, kAnyPeer));
      std::this_thread::sleep_for(10ms);
      CHECK_FALSE(later->done());
      fixture.far.reset();
      CHECK(eventually(2s, [&] { return fixture.lost == 1; }));
    } else {
      fixture.far.reset();
      const auto any = fixture.start(receiveInto(target, kAnyPeer));
      std::this_thread::sleep_for(10ms);
      CHECK_FALSE(any->done());
      unreachable();
      REQUIRE(allDone({any}));
      CHECK(any->status().message() ==
            "no rank is left to receive from: rank 1 has closed its connection; rank 2 has left");
    }
  }
  for (const OpDesc::Transfer kind : {OpDesc::Transfer::kSend, OpDesc::Transfer::kReceive}) {
    Fixture fixture(3);
    fixture.loop.run([&] { fixture.mailbox->unreachable(2, gone); });
    Bytes data(4);
    const auto other = fixture.start(receiveInto(data, 1));
    CHECK_FALSE(other->done());
    const auto op = fixture.start(transfer(kind, data, 2, 0));
    REQUIRE(allDone({op, other}));
    CHECK(op->status().message() == "rank 2 has left");
  }
}

TEST_CASE("a large message that nobody receives holds up no other between ranks") {
  runCluster(2, Options(), [](Member& member) {
    Bytes large = message(8 << 20, 1);
    Bytes small = message(100, 2);
    Bytes target(100);
    if (member.rank == 0) {
      const auto waiting = member.submit(sendOf(large, 1, 1));
      for (int i = 0; i < 50; ++i) {
        CHECK(member.call(sendOf(small, 1, 2)).ok());
      }
      CHECK(member.call(receiveInto(target, 1, 3)).ok());
      CHECK_FALSE(waiting->done());
      CHECK(member.call(sendOf(small, 1, 4)).ok());
      CHECK(member.finish(waiting).ok());
    } else {
      for (int i = 0; i < 50; ++i) {
        CHECK(member.call(receiveInto(target, 0, 2)).ok());
      }
      CHECK(member.call(sendOf(small, 0, 3)).ok());
      CHECK(member.call(receiveInto(target, kAnyPeer, 4)).ok());
      Bytes all(large.size());
      CHECK(member.call(receiveInto(all, 0, 1)).ok());
      CHECK(all == large);
    }
    CHECK(member.call(Member::barrierDesc()).ok());
  });
}

namespace {

struct Letter {
  int from;
  int to;
  int tag;
  size_t bytes;
  uint64_t salt;
  bool any;  // received from anybody
};

// Tags below 8 are received by sender; each of the others by whoever is named or by anybody, and
// there is one message of each, so that any order of arrival has one outcome.
std::vector<Letter> drawLetters(std::mt19937_64& random, int world, int count) {
  constexpr size_t kSizes[] = {1, 300, 60'000, 70'000, 600'000};
  std::vector<Letter> letters;
  for (int i = 0; i < count; ++i) {
    Letter letter;
    letter.from = static_cast<int>(random() % static_cast<uint64_t>(world));
    letter.to = static_cast<int>(random() % static_cast<uint64_t>(world));
    letter.any = random() % 4 == 0;
    letter.tag = letter.any ? 8 + i : static_cast<int>(random() % 8);
    letter.bytes = random() % kSizes[random() % std::size(kSizes)];
    letter.salt = random();
    letters.push_back(letter);
  }
  return letters;
}

// Sends in order, receives in an order of the rank's own as far as tags allow, both at once. Gives
// how many did not come out right.
int exchange(const Member& member, const std::vector<Letter>& letters, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<size_t> incoming;
  std::vector<size_t> outgoing;
  for (size_t i = 0; i < letters.size(); ++i) {
    if (letters[i].to == member.rank) {
      incoming.push_back(i);
    }
    if (letters[i].from == member.rank) {
      outgoing.push_back(i);
    }
  }
  std::stable_sort(incoming.begin(), incoming.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      const auto lane = static_cast<uint64_t>(letters[i].from * 100'000 + letters[i].tag);
      return lane * (seed | 1) % 1009;
    };
    return key(a) < key(b);
  });
  std::vector<Bytes> memory(letters.size() * 2);
  std::vector<std::pair<std::shared_ptr<Op>, size_t>> ops;
  size_t in = 0;
  size_t out = 0;
  while (in < incoming.size() || out < outgoing.size()) {
    if (out < outgoing.size() && (in == incoming.size() || random() % 2 == 0)) {
      const Letter& letter = letters[outgoing[out]];
      Bytes& data = memory[2 * outgoing[out]] = message(letter.bytes, letter.salt);
      ops.emplace_back(member.submit(sendOf(data, letter.to, letter.tag)), SIZE_MAX);
      ++out;
    } else {
      const Letter& letter = letters[incoming[in]];
      Bytes& data = memory[2 * incoming[in] + 1];
      data.resize(letter.bytes);
      const int peer = letter.any ? kAnyPeer : letter.from;
      ops.emplace_back(member.submit(receiveInto(data, peer, letter.tag)), incoming[in]);
      ++in;
    }
    if (random() % 50 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    }
  }
  int wrong = 0;
  for (const auto& [op, index] : ops) {
    const Status status = member.finish(op);
    wrong += status.ok() ? 0 : 1;
    if (status.ok() && index != SIZE_MAX) {
      const Letter& letter = letters[index];
      wrong += op->source() == letter.from ? 0 : 1;
      wrong += memory[2 * index + 1] == message(letter.bytes, letter.salt) ? 0 : 1;
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("random messages between all ranks, and to themselves, all arrive as they were sent") {
  const char* given = std::getenv("RINGCOMM_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::stoull(given) : std::random_device{}();
  INFO("RINGCOMM_TEST_SEED=" << seed);
  const int count = static_cast<int>(600 / kSlowness);
  for (const int world : {2, 3, 5}) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(world));
    Options options;
    options.lanes = world == 3 ? 2 : 1;
    options.sliceBytes = world == 2 ? 4096 : 65536;
    const std::vector<Letter> letters = drawLetters(random, world, count);
    std::atomic<int> wrong{0};
    runCluster(world, options, [&](Member& member) {
      wrong += exchange(member, letters, seed + static_cast<uint64_t>(member.rank));
      CHECK(member.call(Member::barrierDesc()).ok());
    });
    CHECK(wrong == 0);
  }
}
