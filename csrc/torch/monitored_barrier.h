#pragma once

#include "base/clock.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ringcomm {

// A barrier that tells who is missing. It goes through the torch store rather than through the
// group, so that it can say so when the group's connections are what fails; rank 0 collects and
// gives the verdict. Every rank counts its monitored barriers, so the keys are of this one.
class MonitoredBarrier {
 public:
  MonitoredBarrier(c10d::Store& store, int rank, int size, uint64_t number)
      : store_(store), rank_(rank), size_(size), prefix_(prefixOf(number)) {
    if (rank == 0 && number > 1) {
      // Who set the key of the barrier before this one has read the verdict before that.
      store.deleteKey(prefixOf(number - 2) + "verdict");
    }
  }

  // Empty when all ranks came in time, else what to tell the user.
  std::string wait(std::chrono::milliseconds timeout, bool waitAllRanks) {
    const TimePoint deadline = Clock::now() + timeout;
    if (rank_ != 0) {
      set(keyOf(rank_), "here");
      return hearVerdict(deadline, timeout);
    }
    if (timeout <= std::chrono::milliseconds(0)) {
      return publish("Rank 0 timed out in monitoredBarrier after " +
                     std::to_string(timeout.count()) + " ms");
    }
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      if (!comes(keyOf(rank), deadline)) {
        missing.push_back(rank);
        if (!waitAllRanks) {
          break;
        }
      }
    }
    return publish(missing.empty() ? "" : describe(missing, timeout, waitAllRanks));
  }

 private:
  // What rank 0 has found: to the others, and to its own caller.
  std::string publish(const std::string& verdict) {
    set(prefix_ + "verdict", verdict.empty() ? "ok" : verdict);
    for (int rank = 1; rank < size_; ++rank) {
      store_.deleteKey(keyOf(rank));
    }
    return verdict;
  }

  static std::string prefixOf(uint64_t number) {
    return "monitored_barrier/" + std::to_string(number) + "/";
  }
  std::string keyOf(int rank) const { return prefix_ + std::to_string(rank); }

  void set(const std::string& key, const std::string& value) {
    store_.set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }

  // Looks again and again: a blocking wait would keep the store's client from everybody else.
  bool comes(const std::string& key, TimePoint deadline) {
    Duration pause = std::chrono::microseconds(200);
    while (!store_.check({key})) {
      if (Clock::now() >= deadline) {
        return false;
      }
      std::this_thread::sleep_for(pause);
      pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(20));
    }
    return true;
  }

  std::string hearVerdict(TimePoint deadline, std::chrono::milliseconds timeout) {
    const std::string intro = "Rank " + std::to_string(rank_) +
                              " successfully reached monitoredBarrier, but received errors while "
                              "waiting for send/recv from rank 0: ";
    // Rank 0 gives its verdict at its own deadline, which may be a little later than ours.
    if (!comes(prefix_ + "verdict", deadline + std::chrono::seconds(1))) {
      return intro + "rank 0 gave no verdict in " + std::to_string(timeout.count()) + " ms";
    }
    const std::vector<uint8_t> verdict = store_.get(prefix_ + "verdict");
    const std::string text(verdict.begin(), verdict.end());
    return text == "ok" ? "" : intro + text;
  }

  static std::string describe(const std::vector<int>& missing, std::chrono::milliseconds timeout,
                              bool waitAllRanks) {
    std::string ranks;
    for (const int rank : missing) {
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    }
    return std::string("[Rank 0]: ") + (waitAllRanks ? "Ranks " : "Rank ") + ranks +
           " failed to pass monitoredBarrier in " + std::to_string(timeout.count()) + " ms";
  }

  c10d::Store& store_;
  const int rank_;
  const int size_;
  const std::string prefix_;
};

}  // namespace ringcomm
