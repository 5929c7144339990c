#include "engine/channel.h"

#include "looping.h"
#include "sockets.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <vector>

#include <sys/socket.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

constexpr uint32_t kSlice = 4096;

class Observer final : public ChannelObserver {
 public:
  void progressed(Run& run) noexcept override { done = run.done(); }
  void laneLost(Channel&, int error) noexcept override { lost = error; }
  void violated(Channel& channel, const Status& why) noexcept override {
    violation = why;
    channel.discard();
    isViolated = true;
  }
  void mismatched(Channel& channel, Run&, const FrameHeader& theirs,
                  const FrameHeader& mine) noexcept override {
    violated(channel, {Code::kMismatch, describeCall(theirs) + " / " + describeCall(mine)});
  }
  void stirred() noexcept override { hasStirred = true; }
  std::atomic<bool> hasStirred{false};
  std::atomic<bool> done{false};
  std::atomic<int> lost{0};
  std::atomic<bool> isViolated{false};
  Status violation;
};

// A run of one step over its own memory: a send, a receive or a reducing receive.
struct OneStep {
  OneStep(StepKind kind, size_t count, int value, ReduceOp op = ReduceOp::kSum)
      : data(count, static_cast<double>(value)) {
    for (size_t i = 0; i < count; ++i) {
      data[i] += static_cast<double>(i % 1000);
    }
    const Buffer memory{reinterpret_cast<std::byte*>(data.data()), count * sizeof(double)};
    OpDesc desc;
    desc.kind = Collective::kAllReduce;
    desc.dtype = DType::kFloat64;
    desc.reduceOp = op;
    desc.count = count;
    desc.buffers = {memory};
    Run::Setup setup;
    setup.op = std::make_shared<Op>(desc, 9, Clock::now());
    Step step;
    step.kind = kind;
    step.peer = 1;
    step.bytes = memory.bytes;
    step.dst.buffer = step.src.buffer = kData;
    setup.plan.steps = {step};
    setup.buffers = {memory};
    setup.kernel = findKernel(DType::kFloat64, op, Isa::kScalar);
    setup.elementSize = sizeof(double);
    run = std::make_unique<Run>(std::move(setup));
  }
  std::vector<double> data;
  std::unique_ptr<Run> run;
};

// A channel on the loop with the other end as a plain socket.
class Fixture {
 public:
  explicit Fixture(Pair pair = unixPair()) : near(std::move(pair.a)), far(std::move(pair.b)) {
    loop.run([&] { channel = std::make_unique<Channel>(*loop, observer, 1, kSlice); });
  }
  ~Fixture() {
    loop.run([&] { channel.reset(); });
  }
  void start(OneStep& step) {
    loop.run([&] {
      channel->enqueue(*step.run, 0);
      REQUIRE(channel->attach(std::move(near)).ok());
    });
  }
  // Everything that the channel sends of `bytes` bytes.
  std::string take(size_t bytes) {
    std::string all;
    CHECK(eventually(5s, [&] {
      char buffer[65536];
      const size_t wanted = std::min(sizeof buffer, bytes - all.size());
      const ssize_t got = ::recv(far.get(), buffer, wanted, MSG_DONTWAIT);
      all.append(buffer, got > 0 ? static_cast<size_t>(got) : 0);
      return all.size() == bytes;
    }));
    return all;
  }
  void give(const std::string& bytes, size_t piece) {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const std::string part = bytes.substr(at, piece);
      size_t sent = 0;
      CHECK(eventually(5s, [&] {
        const ssize_t now =
            ::send(far.get(), part.data() + sent, part.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += now > 0 ? static_cast<size_t>(now) : 0;
        return sent == part.size();
      }));
    }
  }

  TestLoop loop;
  Observer observer;
  UniqueFd near;
  UniqueFd far;
  std::unique_ptr<Channel> channel;
};

std::string frameOf(FrameHeader header, uint64_t offset, uint32_t length, const OneStep& from) {
  header.offset = offset;
  header.length = length;
  std::array<std::byte, kFrameHeaderBytes> bytes;
  encode(header, bytes);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) +
         std::string(reinterpret_cast<const char*>(from.data.data()) + offset, length);
}

// All frames of the message that `from` stands for.
std::string messageOf(const OneStep& from) {
  std::string all;
  const auto total = static_cast<uint32_t>(from.data.size() * sizeof(double));
  uint32_t offset = 0;
  do {
    const uint32_t length = std::min(kSlice, total - offset);
    all += frameOf(from.run->op().signature(), offset, length, from);
    offset += length;
  } while (offset < total);
  return all;
}

}  // namespace

TEST_CASE("a message goes out as frames of at most a slice, an empty one as one frame") {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{512}, size_t{513}, size_t{20'000}}) {
    CAPTURE(count);
    Fixture fixture;
    OneStep send(StepKind::kSend, count, 1);
    fixture.start(send);
    const std::string expected = messageOf(send);
    CHECK(fixture.take(expected.size()) == expected);
    CHECK(eventually(1s, [&] { return fixture.observer.done.load(); }));
  }
}

TEST_CASE("a message is taken in whatever pieces it arrives, reduced or in place") {
  for (const StepKind kind : {StepKind::kRecv, StepKind::kRecvReduce}) {
    for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, size_t{1} << 20}) {
      CAPTURE(piece);
      const size_t count = piece == 1 ? 700 : 20'000;
      Fixture fixture;
      OneStep mine(kind, count, 1);
      const OneStep theirs(StepKind::kSend, count, 5);
      fixture.start(mine);
      fixture.give(messageOf(theirs), piece);
      CHECK(eventually(5s, [&] { return fixture.observer.done.load(); }));
      size_t wrong = 0;
      for (size_t i = 0; i < count; ++i) {
        const double before = kind == StepKind::kRecv ? 0 : 1 + static_cast<double>(i % 1000);
        wrong += mine.data[i] == before + theirs.data[i] ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

// The socket tells of bytes only when there are enough of them: it must not wait for more than
// come.
TEST_CASE("the end of a long message is taken although an element was broken before it") {
  for (const size_t end : {size_t{1}, size_t{101}, size_t{500}}) {
    CAPTURE(end);
    Fixture fixture(tcpPair(0));
    OneStep mine(StepKind::kRecvReduce, 50'000, 1);
    const OneStep theirs(StepKind::kSend, 50'000, 5);
    const std::string message = messageOf(theirs);
    fixture.start(mine);
    fixture.give(message.substr(0, message.size() - end), 1 << 20);
    const uint64_t whole = 400'000 / 8 - (end + 7) / 8;
    // Mostly it is taken at once, but need not be: more is known to come.
    (void)eventually(
        500ms, [&] { return fixture.loop.run([&] { return mine.run->moved(0) == whole * 8; }); });
    fixture.give(message.substr(message.size() - end), end);
    CHECK(eventually(5s, [&] { return fixture.observer.done.load(); }));
  }
}

TEST_CASE("what another call sends is a mismatch that names both, and is not taken") {
  Fixture fixture;
  OneStep mine(StepKind::kRecv, 100, 1);
  const OneStep theirs(StepKind::kSend, 100, 5, ReduceOp::kMax);
  const std::vector<double> before = mine.data;
  fixture.start(mine);
  fixture.give(messageOf(theirs).substr(0, kFrameHeaderBytes), 1000);
  REQUIRE(eventually(2s, [&] { return fixture.observer.isViolated.load(); }));
  CHECK(fixture.observer.violation.code() == Code::kMismatch);
  const std::string& text = fixture.observer.violation.message();
  CHECK(text == "all_reduce #9 (100 x float64, max) / all_reduce #9 (100 x float64, sum)");
  CHECK(mine.data == before);
}

TEST_CASE("frames out of place and bytes that are no frame are protocol errors") {
  for (int broken = 0; broken < 4; ++broken) {
    CAPTURE(broken);
    Fixture fixture;
    OneStep mine(StepKind::kRecv, 1000, 1);
    const OneStep theirs(StepKind::kSend, 1000, 5);
    FrameHeader header = theirs.run->op().signature();
    header.message = broken == 0 ? 1 : 0;
    const std::string frames[4] = {
        frameOf(header, 0, kSlice, theirs), frameOf(header, 8, kSlice, theirs),
        frameOf(header, 0, 8, theirs), std::string(kFrameHeaderBytes + 8, 'x')};
    fixture.start(mine);
    fixture.give(frames[broken], 1 << 20);
    REQUIRE(eventually(2s, [&] { return fixture.observer.isViolated.load(); }));
    CHECK(fixture.observer.violation.code() == Code::kProtocol);
  }
}

TEST_CASE("the end of a lane is told when it is needed, after what came before it") {
  Fixture fixture;
  OneStep mine(StepKind::kRecv, 1000, 1);
  const OneStep theirs(StepKind::kSend, 1000, 5);
  fixture.start(mine);
  const std::string message = messageOf(theirs);
  fixture.give(message.substr(0, message.size() - 1), 1 << 20);
  fixture.far.reset();
  CHECK(eventually(2s, [&] { return fixture.observer.lost == kLaneEnded; }));
  CHECK_FALSE(fixture.observer.done);
  CHECK(mine.data[900] == theirs.data[900]);
}

TEST_CASE("the end of a lane that nothing needs any more is no loss") {
  Fixture fixture;
  OneStep mine(StepKind::kRecv, 1000, 1);
  const OneStep theirs(StepKind::kSend, 1000, 5);
  fixture.start(mine);
  fixture.give(messageOf(theirs), 1 << 20);
  fixture.far.reset();
  CHECK(eventually(2s, [&] { return fixture.observer.done.load(); }));
  std::this_thread::sleep_for(20ms);
  CHECK(fixture.observer.lost == 0);
}

TEST_CASE("what comes before it is waited for is told, can be looked at, and is then received") {
  Fixture fixture;
  OneStep mine(StepKind::kRecv, 1000, 1);
  const OneStep theirs(StepKind::kSend, 1000, 5);
  const auto seen = [&] { return fixture.loop.run([&] { return fixture.channel->unexpected(); }); };
  fixture.loop.run([&] { REQUIRE(fixture.channel->attach(std::move(fixture.near)).ok()); });
  CHECK_FALSE(seen().has_value());
  const std::string message = messageOf(theirs);
  fixture.give(message.substr(0, kFrameHeaderBytes - 1), 1 << 20);
  CHECK(eventually(2s, [&] { return fixture.observer.hasStirred.load(); }));
  CHECK_FALSE(seen().has_value());
  fixture.give(message.substr(kFrameHeaderBytes - 1), 1 << 20);
  for (int look = 0; look < 2; ++look) {
    const auto header = seen();
    REQUIRE(header.has_value());
    CHECK(header->sequence == 9);
    CHECK(header->length == kSlice);
  }
  fixture.loop.run([&] {
    fixture.channel->enqueue(*mine.run, 0);
    fixture.channel->nudge();
  });
  CHECK_FALSE(seen().has_value());
  CHECK(eventually(2s, [&] { return fixture.observer.done.load(); }));
  CHECK(mine.data == theirs.data);
  CHECK_FALSE(fixture.observer.isViolated);
}

TEST_CASE("what makes no sense is told also when nothing is waited for") {
  Fixture fixture;
  fixture.loop.run([&] { REQUIRE(fixture.channel->attach(std::move(fixture.near)).ok()); });
  fixture.give(std::string(kFrameHeaderBytes, 'x'), 1 << 20);
  CHECK_FALSE(fixture.loop.run([&] { return fixture.channel->unexpected(); }).has_value());
  REQUIRE(fixture.observer.isViolated);
  CHECK(fixture.observer.violation.code() == Code::kProtocol);
}
