#pragma once

#include "coll/plan.h"
#include "coll/select.h"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

// What can be said of plans without running them: for any size, since no bytes are touched.
namespace ringcomm::sim {

using Plans = std::vector<Plan>;  // by rank

inline bool isReceive(const Step& step) {
  return step.kind == StepKind::kRecv || step.kind == StepKind::kRecvReduce;
}

inline bool sameRegion(const Region& a, const Region& b) {
  return a.buffer == b.buffer && a.offset == b.offset;
}

// Plans of all ranks; `spec.rank` is ignored.
inline Plans plansOf(const Algorithm& algorithm, CollectiveSpec spec) {
  Plans plans;
  for (spec.rank = 0; spec.rank < spec.world; ++spec.rank) {
    plans.push_back(makePlan(algorithm, spec));
  }
  return plans;
}

// By rank, for what not every rank knows in full.
inline Plans plansOf(const Algorithm& algorithm, const std::vector<CollectiveSpec>& specs) {
  Plans plans;
  for (const CollectiveSpec& spec : specs) plans.push_back(makePlan(algorithm, spec));
  return plans;
}

inline std::string checkInside(const Region& region, uint64_t bytes,
                               const std::vector<uint64_t>& sizes, size_t elementSize) {
  if (region.buffer >= sizes.size()) return "names a buffer that does not exist";
  const uint64_t size = sizes[region.buffer];
  if (region.offset > size || bytes > size - region.offset) return "leaves its buffer";
  if (region.offset % elementSize != 0) return "starts inside an element";
  return "";
}

inline std::string checkStep(const Plan& plan, size_t index, int rank, int world,
                             const std::vector<uint64_t>& sizes, size_t elementSize) {
  const Step& step = plan.steps[index];
  if (step.after > index) return "waits for itself or a later step";
  if (step.bytes % elementSize != 0) return "moves parts of elements";
  const bool local = step.kind == StepKind::kCopy || step.kind == StepKind::kReduce;
  if (local && step.peer != -1) return "is local but has a peer";
  if (!local && (step.peer < 0 || step.peer >= world || step.peer == rank)) return "has no peer";
  const bool reduces = step.kind == StepKind::kReduce || step.kind == StepKind::kRecvReduce;
  if (step.finish && !reduces) return "finishes what it does not reduce";
  if (step.parts != 1 && step.kind != StepKind::kReduce) return "has parts without reducing them";
  if (step.follow != -1) {
    if (step.kind != StepKind::kSend) return "follows but does not send";
    if (step.follow < 0 || static_cast<size_t>(step.follow) >= index) return "follows no step";
    const Step& followed = plan.steps[static_cast<size_t>(step.follow)];
    if (!isReceive(followed) || followed.bytes != step.bytes ||
        !sameRegion(followed.dst, step.src)) {
      return "follows something else than the arrival of what it sends";
    }
  }
  std::string error;
  if (step.kind != StepKind::kSend) error = checkInside(step.dst, step.bytes, sizes, elementSize);
  if (error.empty() && step.kind != StepKind::kRecv) {
    error = checkInside(step.src, step.bytes * step.parts, sizes, elementSize);
  }
  return error;
}

// `sizes` are those of the buffer table; the entry of kScratch is taken from the plan.
inline std::string checkPlan(const Plan& plan, int rank, int world, std::vector<uint64_t> sizes,
                             size_t elementSize) {
  sizes[kScratch] = plan.scratchBytes;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const std::string error = checkStep(plan, i, rank, world, sizes, elementSize);
    if (!error.empty()) {
      return "rank " + std::to_string(rank) + " step " + std::to_string(i) + " " + error;
    }
  }
  return "";
}

// Messages that have to follow each other from the start of the operation to its end on the last
// rank, or -1 if they wait for each other in a circle or do not match. Goes through the plans as
// the engine does, each queue (sends to a peer, receives from one, local steps) in its order.
class HopCounter {
 public:
  explicit HopCounter(const Plans& plans)
      : plans_(plans), hops_(plans.size()), most_(plans.size(), {0}) {
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      const auto self = static_cast<int>(rank);
      const std::vector<Step>& steps = plans[rank].steps;
      hops_[rank].resize(steps.size(), -1);
      for (size_t i = 0; i < steps.size(); ++i) {
        const bool local = steps[i].peer < 0;
        queues_[{self, isReceive(steps[i]), local ? self : steps[i].peer, local}].push_back(i);
      }
    }
  }

  int count() {
    if (!matched()) return -1;
    std::map<Key, size_t> heads;
    for (bool progress = true; progress;) {
      progress = false;
      for (const auto& [key, queue] : queues_) {
        size_t& head = heads[key];
        while (head < queue.size() && advance(key, queue[head], head)) {
          ++head;
          progress = true;
        }
      }
    }
    int most = 0;
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      if (most_[rank].size() <= hops_[rank].size()) return -1;
      most = std::max(most, most_[rank].back());
    }
    return most;
  }

 private:
  struct Key {
    int rank;
    bool receives;
    int peer;
    bool local;
    auto operator<=>(const Key&) const = default;
  };

  const Step& stepOf(int rank, size_t index) const {
    return plans_[static_cast<size_t>(rank)].steps[index];
  }
  const std::vector<size_t>* queueOf(const Key& key) const {
    const auto found = queues_.find(key);
    return found == queues_.end() ? nullptr : &found->second;
  }

  bool matched() const {
    for (const auto& [key, queue] : queues_) {
      if (key.local) continue;
      const auto* other = queueOf({key.peer, !key.receives, key.rank, false});
      if (other == nullptr || other->size() != queue.size()) return false;
      for (size_t k = 0; k < queue.size(); ++k) {
        if (stepOf(key.rank, queue[k]).bytes != stepOf(key.peer, (*other)[k]).bytes) return false;
      }
    }
    return true;
  }

  // Whether step `index`, the k-th of its queue, can be through by now; if so it is.
  bool advance(const Key& key, size_t index, size_t k) {
    const Step& step = stepOf(key.rank, index);
    std::vector<int>& mine = hops_[static_cast<size_t>(key.rank)];
    std::vector<int>& most = most_[static_cast<size_t>(key.rank)];
    if (most.size() <= step.after) return false;
    int hops = most[step.after];
    if (step.follow >= 0) {
      const int followed = mine[static_cast<size_t>(step.follow)];
      if (followed < 0) return false;
      hops = std::max(hops, followed);
    }
    if (key.receives) {
      const size_t sent = (*queueOf({key.peer, false, key.rank, false}))[k];
      const int send = hops_[static_cast<size_t>(key.peer)][sent];
      if (send < 0) return false;
      hops = std::max(hops, send + 1);
    }
    mine[index] = hops;
    while (most.size() <= mine.size() && mine[most.size() - 1] >= 0) {
      most.push_back(std::max(most.back(), mine[most.size() - 1]));
    }
    return true;
  }

  const Plans& plans_;
  std::map<Key, std::vector<size_t>> queues_;
  std::vector<std::vector<int>> hops_;  // by rank, by step; -1: not through
  std::vector<std::vector<int>>
      most_;  // by rank: of the first 0, 1, .. steps, while all are through
};

inline int hopsOf(const Plans& plans) { return HopCounter(plans).count(); }

inline uint64_t bytesSent(const Plan& plan) {
  uint64_t bytes = 0;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kSend) bytes += step.bytes;
  }
  return bytes;
}

inline size_t messagesSent(const Plan& plan) {
  return static_cast<size_t>(
      std::count_if(plan.steps.begin(), plan.steps.end(),
                    [](const Step& step) { return step.kind == StepKind::kSend; }));
}

// Whether the steps that leave final values in `buffer` (arrivals, copies, finished reductions)
// write each of its `bytes` bytes exactly once.
inline bool writesEachByteOnce(const Plan& plan, uint16_t buffer, uint64_t bytes) {
  std::vector<std::pair<uint64_t, uint64_t>> written;
  for (const Step& step : plan.steps) {
    const bool final = step.kind == StepKind::kRecv || step.kind == StepKind::kCopy || step.finish;
    if (!final || step.dst.buffer != buffer || step.bytes == 0) continue;
    if (step.bytes > std::numeric_limits<uint64_t>::max() - step.dst.offset) return false;
    written.emplace_back(step.dst.offset, step.dst.offset + step.bytes);
  }
  std::sort(written.begin(), written.end());
  uint64_t end = 0;
  for (const auto& [first, last] : written) {
    if (first != end) return false;
    end = last;
  }
  return end == bytes;
}

}  // namespace ringcomm::sim
