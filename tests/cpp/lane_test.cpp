#include "net/lane.h"

#include "looping.h"
#include "sockets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include <sys/socket.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

std::string randomBytesOf(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
  return bytes;
}

iovec pieceOf(std::string& text, size_t from, size_t size) { return {text.data() + from, size}; }

class CountingOwner final : public LaneOwner {
 public:
  void onLaneReady() noexcept override { ++calls; }
  std::atomic<int> calls{0};
};

// Sends and receives whole streams, cut at random into one to three pieces a call.
class Pump final : public LaneOwner {
 public:
  Pump(Loop& loop, UniqueFd fd, std::string out, size_t expected, uint64_t seed)
      : out_(std::move(out)),
        in(expected, '\0'),
        random_(seed),
        lane_(loop, std::move(fd), *this) {}

  void onLaneReady() noexcept override {
    pumpOut();
    pumpIn();
  }
  void pumpOut() {
    while (sent_ < out_.size()) {
      const LaneIo io = transfer(out_, sent_, &TcpLane::send);
      if (io.failed() || io.bytes == 0) {
        return;
      }
      sent_ += io.bytes;
    }
  }
  void pumpIn() {
    while (got < in.size()) {
      const LaneIo io = transfer(in, got, &TcpLane::receive);
      if (io.failed()) {
        error = io.error;
        return;
      }
      if (io.bytes == 0) {
        return;
      }
      got += io.bytes;
    }
  }
  Status watchStatus() const { return lane_.watchStatus(); }
  TcpLane& lane() { return lane_; }

 private:
  using Call = LaneIo (TcpLane::*)(const iovec*, int) noexcept;

  LaneIo transfer(std::string& text, size_t from, Call call) {
    iovec pieces[3];
    const int count = 1 + static_cast<int>(random_() % 3);
    for (iovec& piece : pieces) {
      const size_t size = std::min<size_t>(random_() % 20000, text.size() - from);
      piece = pieceOf(text, from, size);
      from += size;
    }
    if (pieces[0].iov_len == 0) {
      pieces[0] = pieceOf(text, from - pieces[1].iov_len - pieces[2].iov_len, 1);
      return (lane_.*call)(pieces, 1);
    }
    return (lane_.*call)(pieces, count);
  }

  std::string out_;
  size_t sent_ = 0;

 public:
  std::string in;
  std::atomic<size_t> got{0};
  std::atomic<int> error{0};

 private:
  std::mt19937_64 random_;
  TcpLane lane_;
};

}  // namespace

TEST_CASE("both directions carry all bytes in order through short reads and writes") {
  const uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  for (const bool tcp : {false, true}) {
    CAPTURE(tcp);
    const TestLoop loop;
    Pair pair = tcp ? tcpPair(8192) : unixPair();
    const std::string fromA = randomBytesOf(3'000'000, seed);
    const std::string fromB = randomBytesOf(2'000'000, seed + 1);
    std::unique_ptr<Pump> a;
    std::unique_ptr<Pump> b;
    loop.run([&] {
      a = std::make_unique<Pump>(*loop, std::move(pair.a), fromA, fromB.size(), seed);
      b = std::make_unique<Pump>(*loop, std::move(pair.b), fromB, fromA.size(), seed + 2);
      REQUIRE(a->watchStatus().ok());
    });
    CHECK(eventually(20s, [&] { return a->got == fromB.size() && b->got == fromA.size(); }));
    loop.run([&] {
      CHECK(a->in == fromB);
      CHECK(b->in == fromA);
      a.reset();
      b.reset();
    });
  }
}

TEST_CASE("the peer's end is told after all that it sent, however late that is read") {
  for (const bool tcp : {false, true}) {
    for (const auto delay : {0ms, 20ms}) {
      CAPTURE(tcp);
      CAPTURE(delay.count());
      const TestLoop loop;
      Pair pair = tcp ? tcpPair(0) : unixPair();
      const std::string data = randomBytesOf(100'000, 7);
      REQUIRE(::send(pair.a.get(), data.data(), data.size(), 0) ==
              static_cast<ssize_t>(data.size()));
      if (delay == 0ms) {
        pair.a.reset();
      }
      std::unique_ptr<Pump> reader;
      loop.run([&] {
        reader = std::make_unique<Pump>(*loop, std::move(pair.b), "", data.size() + 1, 1);
        if (delay == 0ms) {
          reader->pumpIn();  // before the loop has told anything
        }
      });
      std::this_thread::sleep_for(delay);
      pair.a.reset();  // now nothing but the end is left to come
      CHECK(eventually(2s, [&] { return reader->error == kLaneEnded; }));
      loop.run([&] {
        CHECK(reader->got == data.size());
        CHECK(reader->in.substr(0, data.size()) == data);
        reader.reset();
      });
    }
  }
}

TEST_CASE("a reset is an error with its number, for reader and writer") {
  const TestLoop loop;
  Pair pair = tcpPair(0);
  std::unique_ptr<Pump> lane;
  loop.run([&] { lane = std::make_unique<Pump>(*loop, std::move(pair.b), "", 10, 1); });
  const linger abrupt{1, 0};
  REQUIRE(::setsockopt(pair.a.get(), SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt) == 0);
  pair.a.reset();
  CHECK(eventually(2s, [&] { return lane->error == ECONNRESET; }));
  loop.run([&] {
    char byte = 0;
    const iovec piece{&byte, 1};
    CHECK(lane->lane().send(&piece, 1).error == EPIPE);
    lane.reset();
  });
}

TEST_CASE("a lane that would block says so without a system call until it is ready again") {
  const TestLoop loop;
  Pair pair = unixPair();
  CountingOwner owner;
  std::unique_ptr<TcpLane> lane;
  loop.run([&] { lane = std::make_unique<TcpLane>(*loop, std::move(pair.a), owner); });
  REQUIRE(eventually(1s, [&] { return owner.calls > 0; }));
  loop.run([&] {
    std::string buffer(1 << 16, 'x');
    const iovec piece = pieceOf(buffer, 0, buffer.size());
    CHECK(lane->receive(&piece, 1).bytes == 0);
    size_t sent = 0;
    LaneIo io;
    while ((io = lane->send(&piece, 1)).bytes > 0) {
      sent += io.bytes;
    }
    CHECK_FALSE(io.failed());
    CHECK(sent > 0);
    CHECK(lane->send(&piece, 1).bytes == 0);
  });
  const int before = owner.calls;
  std::string sink(1 << 22, '\0');
  REQUIRE(::recv(pair.b.get(), sink.data(), sink.size(), 0) > 0);
  CHECK(eventually(1s, [&] { return owner.calls > before; }));
  loop.run([&] {
    char byte = 'y';
    const iovec piece{&byte, 1};
    CHECK(lane->send(&piece, 1).bytes == 1);
    lane.reset();
  });
}

TEST_CASE("what has come can be looked at without being taken, also below the low-water mark") {
  const TestLoop loop;
  Pair pair = tcpPair(0);
  CountingOwner owner;
  std::unique_ptr<TcpLane> lane;
  loop.run([&] {
    lane = std::make_unique<TcpLane>(*loop, std::move(pair.a), owner);
    lane->expect(1 << 20, 1 << 20);
  });
  std::byte seen[8];
  const auto peek = [&] { return loop.run([&] { return lane->peek(seen, sizeof seen); }); };
  CHECK(peek() == 0);
  const int before = owner.calls;
  REQUIRE(::send(pair.b.get(), "abcdefghij", 10, 0) == 10);
  CHECK(eventually(1s, [&] { return owner.calls > before; }));
  for (int look = 0; look < 2; ++look) {
    CHECK(peek() == 8);
    CHECK(seen[7] == std::byte{'h'});
  }
  loop.run([&] {
    std::string buffer(20, '\0');
    const iovec piece = pieceOf(buffer, 0, buffer.size());
    CHECK(lane->receive(&piece, 1).bytes == 10);
    CHECK(buffer.substr(0, 10) == "abcdefghij");
  });
  pair.b.reset();
  CHECK(peek() == 0);
  loop.run([&] { lane.reset(); });
}
