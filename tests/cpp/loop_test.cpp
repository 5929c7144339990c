#include "io/loop.h"

#include "looping.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <random>
#include <vector>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

using namespace ringcomm;
using namespace ringcomm::testing;
using namespace std::chrono_literals;

namespace {

const auto kNever = [] { return false; };

// Counts its turns and asks for the next one until told to stop.
class Busy final : public Runnable {
 public:
  explicit Busy(Loop& loop) : loop_(loop) {}
  void run() noexcept override {
    ++turns;
    if (!halted) {
      loop_.makeReady(this);
    }
  }
  std::atomic<int> turns{0};
  std::atomic<bool> halted{false};

 private:
  Loop& loop_;
};

class Counting final : public EventHandler {
 public:
  void onEvents(uint32_t) noexcept override {
    ++calls;
    if (onCall) {
      onCall();
    }
  }
  std::atomic<int> calls{0};
  std::function<void()> onCall;
};

UniqueFd makeEvent() { return UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

void signal(const UniqueFd& fd) {
  const uint64_t one = 1;
  REQUIRE(::write(fd.get(), &one, sizeof one) == sizeof one);
}

}  // namespace

TEST_CASE("tasks posted by several threads all run, each thread's in its order") {
  const TestLoop loop;
  constexpr int kThreads = 4;
  constexpr int kTasks = 2000;
  std::vector<std::vector<int>> seen(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        loop->post([&, t, i] { seen[static_cast<size_t>(t)].push_back(i); });
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  loop.run([] {});
  for (const auto& order : seen) {
    CHECK(order.size() == kTasks);
    CHECK(std::is_sorted(order.begin(), order.end()));
  }
}

TEST_CASE("a task that posts another does not keep the loop from its events") {
  const TestLoop loop;
  std::atomic<bool> halted{false};
  std::function<void()> again = [&] {
    if (!halted) {
      loop->post(again);
    }
  };
  Counting handler;
  const UniqueFd fd = makeEvent();
  loop.run([&] { REQUIRE(loop->watch(fd.get(), EPOLLIN, &handler).ok()); });
  loop->post(again);
  signal(fd);
  CHECK(eventually(1s, [&] { return handler.calls == 1; }));
  halted = true;
  loop.run([&] { loop->unwatch(fd.get(), &handler); });
}

TEST_CASE("timers fire in the order of their times, not early, and not once cancelled") {
  const TestLoop loop;
  std::vector<int> fired;
  std::atomic<bool> done{false};
  bool early = false;
  loop.run([&] {
    const TimePoint start = Clock::now();
    const auto note = [&](int number, std::chrono::milliseconds after) {
      return loop->startTimer(start + after, [&, number, when = start + after] {
        fired.push_back(number);
        early = early || Clock::now() < when;
      });
    };
    note(3, 30ms);
    note(1, 10ms);
    note(2, 10ms);  // of two for one time the first made goes first
    const Loop::TimerId cancelled = note(9, 15ms);
    const Loop::TimerId later = note(8, 25ms);
    loop->cancelTimer(cancelled);
    loop->startTimer(start + 20ms, [&, later] { loop->cancelTimer(later); });
    loop->startTimer(start + 40ms, [&] { done = true; });
  });
  REQUIRE(eventually(2s, [&] { return done.load(); }));
  loop.run([&] {
    CHECK(fired == std::vector<int>{1, 2, 3});
    CHECK_FALSE(early);
  });
}

TEST_CASE("a timer may cancel one that is due at the same time, and itself") {
  const TestLoop loop;
  Loop::TimerId first;
  Loop::TimerId second;
  std::atomic<bool> wrong{false};
  std::atomic<bool> ran{false};
  loop.run([&] {
    const TimePoint when = Clock::now() + 1ms;
    first = loop->startTimer(when, [&] {
      loop->cancelTimer(first);
      loop->cancelTimer(second);
      ran = true;
    });
    second = loop->startTimer(when, [&] { wrong = true; });
    std::this_thread::sleep_for(5ms);  // both are due in the same round
  });
  CHECK(eventually(1s, [&] { return ran.load(); }));
  loop.run([] {});
  CHECK_FALSE(wrong);
}

TEST_CASE("an event of the current batch does not reach a handler that was unwatched") {
  const TestLoop loop;
  const UniqueFd fds[2] = {makeEvent(), makeEvent()};
  Counting handlers[2];
  loop.run([&] {
    for (int i = 0; i < 2; ++i) {
      handlers[i].onCall = [&, i] { loop->unwatch(fds[1 - i].get(), &handlers[1 - i]); };
      REQUIRE(loop->watch(fds[i].get(), EPOLLIN, &handlers[i]).ok());
    }
    signal(fds[0]);
    signal(fds[1]);  // the loop is here, so both are ready when it looks
  });
  CHECK(eventually(1s, [&] { return handlers[0].calls + handlers[1].calls > 0; }));
  loop.run([] {});
  loop.run([&] {
    CHECK(handlers[0].calls + handlers[1].calls == 1);
    for (int i = 0; i < 2; ++i) {
      loop->unwatch(fds[i].get(), &handlers[i]);
    }
  });
}

TEST_CASE("runnables take turns, and starve neither tasks nor timers nor events") {
  const TestLoop loop;
  Busy first(*loop);
  Busy second(*loop);
  Counting handler;
  const UniqueFd fd = makeEvent();
  std::atomic<bool> timerFired{false};
  loop.run([&] {
    REQUIRE(loop->watch(fd.get(), EPOLLIN, &handler).ok());
    loop->makeReady(&first);
    loop->makeReady(&second);
    loop->makeReady(&first);  // is in the list already
    loop->startTimer(Clock::now() + 5ms, [&] { timerFired = true; });
  });
  signal(fd);
  CHECK(eventually(1s, [&] { return timerFired && handler.calls == 1; }));
  loop.run([&] {
    CHECK(first.turns > 10);
    CHECK(std::abs(first.turns - second.turns) <= 1);
    first.halted = second.halted = true;
    loop->forget(&first);
    loop->forget(&second);
    loop->unwatch(fd.get(), &handler);
  });
}

TEST_CASE("a runnable that another one forgets in the same round does not run") {
  const TestLoop loop;
  Busy victim(*loop);
  class Killer final : public Runnable {
   public:
    void run() noexcept override { loop->forget(victim); }
    Loop* loop = nullptr;
    Runnable* victim = nullptr;
  } killer;
  killer.loop = &*loop;
  killer.victim = &victim;
  loop.run([&] {
    loop->makeReady(&killer);
    loop->makeReady(&victim);
  });
  loop.run([] {});
  loop.run([] {});
  CHECK(victim.turns == 0);
  CHECK_FALSE(victim.onReadyList);
}

TEST_CASE("assist takes over a sleeping loop and runs its tasks on the calling thread") {
  const TestLoop loop;
  std::this_thread::sleep_for(5ms);  // long enough for the loop to sleep
  std::thread::id ranOn;
  std::atomic<bool> ran{false};
  const TimePoint start = Clock::now();
  loop->postQuietly([&] {
    ranOn = std::this_thread::get_id();
    ran = true;
  });
  loop->assist([&] { return ran.load(); }, Clock::now() + 5s, 0us);
  CHECK(ran);
  CHECK(ranOn == std::this_thread::get_id());
  CHECK(secondsSince(start) < 1.0);
  // And the loop's own thread is back afterwards.
  CHECK(loop.run([] { return std::this_thread::get_id(); }) != std::this_thread::get_id());
}

TEST_CASE("a second assistant returns at once") {
  const TestLoop loop;
  std::atomic<bool> inside{false};
  std::atomic<bool> done{false};
  const auto isDone = [&] {
    inside = true;  // asked by the assistant alone: a task might run on the loop's own thread
    return done.load();
  };
  std::thread first([&] { loop->assist(isDone, Clock::now() + 10s, 0us); });
  REQUIRE(eventually(2s, [&] { return inside.load(); }));
  const TimePoint start = Clock::now();
  loop->assist(kNever, Clock::now() + 10s, 0us);
  CHECK(secondsSince(start) < 1.0);
  loop->post([&] { done = true; });  // ends the first one's sleep as well
  const TimePoint posted = Clock::now();
  first.join();
  CHECK(secondsSince(posted) < 1.0);
}

TEST_CASE("an assistant waits for the loop's thread when that is at work, and then goes on") {
  const TestLoop loop;
  std::atomic<bool> working{false};
  std::atomic<bool> overlapped{false};
  std::atomic<bool> ran{false};
  loop->post([&] {
    working = true;
    std::this_thread::sleep_for(50ms);
    working = false;
  });
  REQUIRE(eventually(1s, [&] { return working.load(); }));
  loop->postQuietly([&] {
    overlapped = working.load();
    ran = true;
  });
  loop->assist([&] { return ran.load(); }, Clock::now() + 5s, 0us);
  CHECK(ran);
  CHECK_FALSE(overlapped);
}

TEST_CASE("events and timers are served while an assistant runs the loop, and after it has gone") {
  const TestLoop loop;
  Counting handler;
  const UniqueFd fd = makeEvent();
  std::atomic<bool> timerFired{false};
  loop.run([&] {
    REQUIRE(loop->watch(fd.get(), EPOLLIN, &handler).ok());
    loop->startTimer(Clock::now() + 20ms, [&] { timerFired = true; });
  });
  signal(fd);
  loop->assist([&] { return timerFired && handler.calls == 1; }, Clock::now() + 5s, 0us);
  CHECK(timerFired);
  CHECK(handler.calls == 1);
  signal(fd);  // nobody runs the loop now; its thread comes back by itself
  CHECK(eventually(1s, [&] { return handler.calls == 2; }));
  loop.run([&] { loop->unwatch(fd.get(), &handler); });
}

TEST_CASE("with work in flight the loop's thread takes over right after an assist") {
  const TestLoop loop;
  Counting handler;
  const UniqueFd fd = makeEvent();
  loop.run([&] { REQUIRE(loop->watch(fd.get(), EPOLLIN, &handler).ok()); });
  loop->retain();
  for (int i = 1; i <= 50; ++i) {
    loop->assist([] { return true; }, Clock::now() + 1s, 0us);
    signal(fd);
    REQUIRE(eventually(1s, [&] { return handler.calls == i; }));
  }
  loop->release();
  loop.run([&] { loop->unwatch(fd.get(), &handler); });
}

TEST_CASE("assist ends at its deadline, asleep or polling") {
  const TestLoop loop;
  for (const Duration spin : {Duration(0us), Duration(10ms), Duration(1s)}) {
    const TimePoint start = Clock::now();
    loop->assist(kNever, start + 50ms, spin);
    const double took = secondsSince(start);
    CHECK(took >= 0.05);
    CHECK(took < 0.5);
  }
  const TimePoint start = Clock::now();
  loop->assist(kNever, start - 1s, 0us);  // is over before it starts
  CHECK(secondsSince(start) < 0.5);
}

TEST_CASE("an assistant that has polled in vain sleeps between later events") {
  const TestLoop loop;
  const UniqueFd event = makeEvent();
  Counting handler;
  loop.run([&] { REQUIRE(loop->watch(event.get(), EPOLLIN, &handler).ok()); });
  std::thread far([&] {
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(40ms);
      signal(event);
    }
  });
  timespec before{};
  timespec after{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  loop->assist([&] { return handler.calls == 10; }, Clock::now() + 10s, 20ms);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  far.join();
  loop.run([&] { loop->unwatch(event.get(), &handler); });
  CHECK(handler.calls == 10);
  const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                         static_cast<double>(after.tv_nsec - before.tv_nsec) * 1e-9;
  CHECK(seconds < 0.1);  // polling before each event would take 0.2 s
}

TEST_CASE("an idle loop takes no processor time") {
  const TestLoop loop;
  loop->assist([] { return true; }, Clock::now() + 1s, 0us);
  std::this_thread::sleep_for(50ms);
  const std::clock_t before = std::clock();  // of the whole process
  std::this_thread::sleep_for(200ms);
  CHECK(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC < 0.02);
}

TEST_CASE("stop ends an assist that sleeps") {
  const TestLoop loop;
  std::atomic<bool> inside{false};
  loop->postQuietly([&] { inside = true; });
  std::thread assistant([&] { loop->assist(kNever, Clock::now() + 20s, 0us); });
  REQUIRE(eventually(2s, [&] { return inside.load(); }));
  const TimePoint start = Clock::now();
  loop->stop();
  assistant.join();
  CHECK(secondsSince(start) < 1.0);
}

TEST_CASE("stop drops what was posted and not run, and may be repeated") {
  const TestLoop loop;
  std::atomic<bool> blocked{false};
  std::atomic<bool> ran{false};
  std::atomic<bool> release{false};
  loop->post([&] {
    blocked = true;
    while (!release) {
      std::this_thread::yield();
    }
  });
  REQUIRE(eventually(1s, [&] { return blocked.load(); }));
  loop->post([&] { ran = true; });
  std::thread stopper([&] { loop->stop(); });
  std::this_thread::sleep_for(20ms);
  release = true;
  stopper.join();
  loop->stop();
  CHECK_FALSE(ran);
}

// Every combination of sleeping, working, parked and assisted meets posts at random moments. A lost
// wake-up shows as a task that is not run although nothing else happens on the loop.
TEST_CASE("no wake-up is lost between posts, assists and sleeps") {
  const uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  const TestLoop loop;
  std::atomic<bool> lost{false};
  const TimePoint end = Clock::now() + 1500ms;
  const auto poster = [&](uint64_t salt, bool assists) {
    std::mt19937_64 random(seed + salt);
    while (Clock::now() < end && !lost) {
      std::atomic<bool> ran{false};
      if (assists) {
        loop->postQuietly([&] { ran = true; });
        loop->assist([&] { return ran.load(); }, Clock::now() + 5s, random() % 2 * 20us);
        if (!ran) {
          loop->post([] {});
        }
      } else {
        loop->post([&] { ran = true; });
      }
      const TimePoint limit = Clock::now() + 5s;
      while (!ran && !lost) {
        std::this_thread::yield();
        if (Clock::now() > limit) {
          lost = true;
        }
      }
      if (lost) {
        loop.run([] {});  // `ran` must not die before its task has gone
      }
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t salt = 0; salt < 3; ++salt) {
    threads.emplace_back(poster, salt, salt != 0);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK_FALSE(lost);
}
