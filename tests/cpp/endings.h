#pragma once

#include "cluster.h"

#include <functional>
#include <string>
#include <vector>

// Groups of a kind, and how what their ranks do ends.
namespace ringcomm::testing {

struct Setting {
  int world;
  int64_t lanes = 1;
  int64_t loops = 1;
  int64_t slice = 262144;
  std::string algorithms = "";

  Options options() const {
    Options made;
    made.lanes = lanes;
    made.progressThreads = loops;
    made.sliceBytes = slice;
    made.algorithms = algorithms;
    return made;
  }
  std::string text() const {
    return "world " + std::to_string(world) + ", lanes " + std::to_string(lanes) + ", loops " +
           std::to_string(loops) + ", slice " + std::to_string(slice) + ", " + algorithms;
  }
};

struct Ending {
  Status status;
  double seconds = 0;  // since the ranks started together
};

// Joins, makes all connections with a barrier and one all_reduce, then lets every rank do `act` at
// the same moment and notes how and when that ended.
inline std::vector<Ending> endings(const Setting& setting,
                                   const std::function<Status(const Member&)>& act) {
  std::vector<Ending> result(static_cast<size_t>(setting.world));
  Meeting warmed(setting.world);
  Meeting ended(setting.world);
  runCluster(setting.world, setting.options(), [&](Member& member) {
    std::vector<float> warm(50000, 1);
    CHECK(member.allReduce(warm, DType::kFloat32).ok());
    CHECK(member.call(Member::barrierDesc()).ok());
    // A failure that comes while another rank is still in the barrier would fail that, too.
    warmed.wait();
    const TimePoint start = Clock::now();
    Ending& ending = result[static_cast<size_t>(member.rank)];
    ending.status = act(member);
    ending.seconds = secondsSince(start);
    if (!ending.status.ok()) {
      // Whatever comes later ends at once, for the first reason.
      const TimePoint again = Clock::now();
      std::vector<float> data(10, 1);
      const Status later = member.allReduce(data, DType::kFloat32);
      CHECK(secondsSince(again) < 0.1 * kSlowness);
      CHECK(later.code() == ending.status.code());
      CHECK(later.message() == ending.status.message());
    }
    // Nobody leaves before all have seen the end: leaving is news of its own.
    ended.wait();
  });
  return result;
}

inline bool contains(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

// On every rank within a second one error that says all of these.
inline void checkMismatch(const std::vector<Ending>& ends, const std::vector<std::string>& words) {
  for (const Ending& end : ends) {
    CAPTURE(end.status.message());
    CHECK(end.status.code() == Code::kMismatch);
    for (const std::string& word : words) {
      CAPTURE(word);
      CHECK(contains(end.status, word));
    }
    CHECK(end.seconds < 1.0 * kSlowness);
  }
}

}  // namespace ringcomm::testing
