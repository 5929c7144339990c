// What the hand-overs between threads cost: a task posted to a loop that sleeps, the same run by
// the waiter itself, and many tasks at once. Prints the median and the least of many rounds.
#include "base/clock.h"
#include "io/loop.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

namespace {

using namespace ringcomm;

void report(const char* what, std::vector<double>& micros) {
  std::sort(micros.begin(), micros.end());
  std::printf("%-44s %9.2f us %9.2f us\n", what, micros[micros.size() / 2], micros.front());
}

double microsOf(const std::function<void()>& work) {
  const TimePoint start = Clock::now();
  work();
  return secondsSince(start) * 1e6;
}

// A caller that hands a task over and sleeps until it has run: the cost of two thread switches.
void postAndWait(Loop& loop, int rounds) {
  std::vector<double> micros;
  for (int i = 0; i < rounds; ++i) {
    micros.push_back(microsOf([&loop] {
      std::atomic<bool> ran{false};
      loop.post([&ran] {
        ran.store(true);
        ran.notify_one();
      });
      ran.wait(false);
    }));
  }
  report("post to a sleeping loop, wait for it", micros);
}

// The same work done by the waiter itself.
void assist(Loop& loop, int rounds) {
  std::vector<double> micros;
  for (int i = 0; i < rounds; ++i) {
    micros.push_back(microsOf([&loop] {
      bool ran = false;
      loop.postQuietly([&ran] { ran = true; });
      loop.assist([&ran] { return ran; }, Clock::now() + std::chrono::seconds(1), {});
    }));
  }
  report("post quietly, run it as an assistant", micros);
}

void postMany(Loop& loop, int rounds) {
  constexpr int kTasks = 1000;
  std::vector<double> micros;
  for (int i = 0; i < rounds; ++i) {
    micros.push_back(microsOf([&loop] {
                       std::atomic<int> left{kTasks};
                       for (int task = 0; task < kTasks; ++task) {
                         loop.post([&left] {
                           if (left.fetch_sub(1) == 1) {
                             left.notify_one();
                           }
                         });
                       }
                       for (int now = left.load(); now != 0; now = left.load()) {
                         left.wait(now);
                       }
                     }) /
                     kTasks);
  }
  report("a task, posted among 1,000", micros);
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  const int rounds = quick ? 200 : 5000;
  auto loop = Loop::create("bench");
  if (!loop.ok()) {
    std::fprintf(stderr, "%s\n", loop.status().message().c_str());
    return 1;
  }
  std::printf("%-44s %12s %12s\n", "", "median", "least");
  postAndWait(**loop, rounds);
  assist(**loop, rounds);
  postMany(**loop, std::max(rounds / 100, 5));
  return 0;
}
