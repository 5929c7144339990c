#include "net/listener.h"

#include "dialing.h"

#include <doctest/doctest.h>

#include <random>
#include <thread>

#include <dirent.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

size_t openFds() {
  size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  REQUIRE(directory != nullptr);
  while (::readdir(directory) != nullptr) {
    ++count;
  }
  ::closedir(directory);
  return count;
}

void say(const UniqueFd& fd, const std::string& bytes) {
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// A HELLO of the right group, as a stranger can make who knows the group's name.
std::string helloBytes(int from) {
  DialerHandshake machine(helloOf(from, 50000), "guess");
  REQUIRE(machine.start().ok());
  return machine.takeOutput();
}

std::string randomText(std::mt19937_64& random, size_t size) {
  std::string text(size, '\0');
  for (char& c : text) {
    c = static_cast<char>(random());
  }
  return text;
}

// A peer that proves itself gets in within the time, whatever else is going on.
void checkPeerGetsIn(TestListener& listener, int rank, double limit) {
  const TimePoint start = Clock::now();
  const int before = listener.acceptedCount;
  Result<UniqueFd> fd = dial({listener.address()}, helloOf(rank, 50000), limit);
  CAPTURE(fd.status().message());
  CHECK(fd.ok());
  CHECK(secondsSince(start) < limit);
  CHECK(eventually(1s, [&] { return listener.acceptedCount == before + 1; }));
}

}  // namespace

TEST_CASE("a proven connection is handed on with what it is for, and carries bytes at once") {
  TestListener listener;
  Result<UniqueFd> fd = dial({listener.address()}, helloOf(3, 50000, 7));
  REQUIRE(fd.ok());
  REQUIRE(eventually(1s, [&] { return listener.acceptedCount == 1; }));
  say(*fd, "data");
  const std::string got = listener.loop.run([&] {
    char buffer[8] = {};
    const auto& far = listener.accepted.at(3);
    for (int i = 0; i < 1000 && ::recv(far.get(), buffer, 4, MSG_PEEK) < 4; ++i) {
      std::this_thread::sleep_for(1ms);
    }
    (void)::recv(far.get(), buffer, 4, 0);
    return std::string(buffer);
  });
  CHECK(got == "data");
  CHECK(listener.reportCount() == 0);
}

TEST_CASE("who speaks another protocol is dropped at its first wrong byte, without an answer") {
  TestListener listener;
  std::mt19937_64 random(11);
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), std::string("\x16\x03\x01\x02", 4),
        std::string(1, '\0'), "X" + randomText(random, 100'000), std::string("RNGX")}) {
    const TimePoint start = Clock::now();
    const UniqueFd fd = connectPlainly(listener.address());
    say(fd, words);
    const std::string answer = readToEnd(fd);
    CHECK((answer.empty() || answer == "reset"));
    CHECK(secondsSince(start) < 1.0);
  }
  CHECK(eventually(1s, [&] { return listener.reported("no ringcomm"); }));
  checkPeerGetsIn(listener, 1, 1.0);
}

TEST_CASE("a refusal arrives although the refused one has sent more") {
  TestListener listener;
  listener.answer = Refusal::kWrongWorld;
  for (int i = 0; i < 50; ++i) {
    const UniqueFd fd = connectPlainly(listener.address());
    say(fd, helloBytes(i) + std::string(500, 'x'));
    const std::string answer = readToEnd(fd);
    REQUIRE(answer.size() == 8);
    CHECK(answer.substr(0, 4) == "RNGC");
    CHECK(answer[6] == 5);  // REFUSAL
    CHECK(answer[7] == static_cast<char>(Refusal::kWrongWorld));
  }
}

TEST_CASE("one who goes on talking after a refusal, or stays silent, is closed all the same") {
  TestListener listener;
  listener.answer = Refusal::kWrongWorld;
  const size_t before = openFds();
  {
    const UniqueFd talker = connectPlainly(listener.address());
    say(talker, helloBytes(1) + std::string(100'000, 'x'));
    (void)readToEnd(talker);
    const UniqueFd silent = connectPlainly(listener.address());
    say(silent, helloBytes(2));
    CHECK(eventually(3s, [&] { return openFds() <= before + 2; }));  // ours alone
  }
}

TEST_CASE("a connection for what exists already is refused before the dialer believes in it") {
  TestListener listener;
  Result<UniqueFd> first = dial({listener.address()}, helloOf(1, 50000));
  REQUIRE(first.ok());
  Result<UniqueFd> second = dial({listener.address()}, helloOf(1, 50000));
  CHECK(second.status().code() == Code::kRefused);
  CHECK(second.status().message().find("exists already") != std::string::npos);
  CHECK(listener.acceptedCount == 1);
}

TEST_CASE("two handshakes for one lane at the same time: one gets in") {
  for (int round = 0; round < 10; ++round) {
    TestListener listener;
    std::atomic<int> in{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back(
          [&] { in += dial({listener.address()}, helloOf(1, 50000)).ok() ? 1 : 0; });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(in == 1);
    CHECK(listener.acceptedCount == 1);
  }
}

TEST_CASE("handshakes left open half way end in time and hold nobody up") {
  TestListener listener;
  const size_t before = openFds();
  const std::string hello = helloBytes(1);
  std::vector<UniqueFd> open;
  for (size_t cut : {size_t{0}, size_t{1}, size_t{4}, size_t{8}, size_t{50}, hello.size()}) {
    open.push_back(connectPlainly(listener.address()));
    say(open.back(), hello.substr(0, cut));
  }
  checkPeerGetsIn(listener, 2, 1.0);
  const TimePoint start = Clock::now();
  for (const UniqueFd& fd : open) {
    (void)readToEnd(fd);
  }
  CHECK(secondsSince(start) < 6.5);  // Listener::kHandshakeTime and what starting took
  CHECK(listener.reported("did not end in time"));
  open.clear();
  listener.loop.run([&] { listener.accepted.clear(); });
  CHECK(openFds() <= before);
}

TEST_CASE("a thousand strangers at once cost few descriptors, few lines, and no peer its place") {
  TestListener listener;
  const size_t before = openFds();
  const uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  std::vector<UniqueFd> strangers[4];
  for (auto& mine : strangers) {
    threads.emplace_back([&, salt = &mine - strangers] {
      std::mt19937_64 random(seed + static_cast<uint64_t>(salt));
      while (!go) {
        std::this_thread::yield();
      }
      for (int i = 0; i < 250; ++i) {
        mine.push_back(connectPlainly(listener.address()));
        if (random() % 2 == 0) {
          say(mine.back(), random() % 2 == 0 ? "RN" : randomText(random, random() % 200));
        }
      }
    });
  }
  go = true;
  for (int rank = 1; rank <= 8; ++rank) {
    checkPeerGetsIn(listener, rank, 3.0);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  listener.loop.run([] {});
  CHECK(openFds() <= before + 1000 + 8 + Listener::kMaxPending + 8);
  checkPeerGetsIn(listener, 9, 1.0);
  CHECK(listener.reportCount() <= 7);  // five a window of ten seconds, and the number of the rest
  CHECK(listener.reportCount() > 0);
}

TEST_CASE("strangers who know the group's name cannot push out a peer either") {
  TestListener listener;
  std::vector<UniqueFd> strangers;
  const std::string hello = helloBytes(77);
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connectPlainly(listener.address()));
    say(strangers.back(), hello);
  }
  checkPeerGetsIn(listener, 1, 2.0);
}

TEST_CASE("a port scan, connect and close, costs nothing that stays") {
  TestListener listener;
  const size_t before = openFds();
  for (int i = 0; i < 500; ++i) {
    const UniqueFd fd = connectPlainly(listener.address());
    if (i % 2 == 0) {
      const linger abrupt{1, 0};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
    }
  }
  CHECK(eventually(2s, [&] { return openFds() <= before; }));
  CHECK(listener.reportCount() <= 7);
  checkPeerGetsIn(listener, 1, 1.0);
}

TEST_CASE("a secret that differs is named on both sides, and nobody gets in") {
  TestListener listener("right");
  Result<UniqueFd> fd = dial({listener.address()}, helloOf(1, 50000), 20, "wrong");
  CHECK(fd.status().code() == Code::kRefused);
  CHECK(fd.status().message().find("secret") != std::string::npos);
  CHECK(fd.status().message().find("rank 50000 (host b)") != std::string::npos);
  CHECK(eventually(1s, [&] { return listener.reported("the secrets differ"); }));
  CHECK(listener.reported("rank 1 of"));
  CHECK(listener.acceptedCount == 0);
}

TEST_CASE("another version of the protocol is named on both sides") {
  TestListener listener;
  const UniqueFd fd = connectPlainly(listener.address());
  std::string hello = helloBytes(1);
  hello[4] = 9;
  say(fd, hello);
  const std::string answer = readToEnd(fd);
  REQUIRE(answer.size() == 8);
  CHECK(answer[7] == static_cast<char>(Refusal::kVersion));
  CHECK(listener.reported("peer speaks protocol 9, this side 1"));
}

TEST_CASE("a listener that goes closes what was in its handshake") {
  std::vector<UniqueFd> open;
  {
    TestListener listener;
    for (int i = 0; i < 5; ++i) {
      open.push_back(connectPlainly(listener.address()));
    }
    listener.loop.run([] {});
  }
  const TimePoint start = Clock::now();
  for (const UniqueFd& fd : open) {
    (void)readToEnd(fd);
  }
  CHECK(secondsSince(start) < 1.0);
}
