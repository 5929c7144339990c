#pragma once

#include "coll/plan.h"
#include "coll/select.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
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
  if (error.empty() && !isReceive(step)) {
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
// rank, or -1 if they wait for each other in a circle or do not match.
class HopCounter {
 public:
  explicit HopCounter(const Plans& plans) : plans_(plans), known_(plans.size()) {
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      known_[rank].resize(plans[rank].steps.size());
      for (size_t i = 0; i < plans[rank].steps.size(); ++i) {
        const Step& step = plans[rank].steps[i];
        const auto self = static_cast<int>(rank);
        if (step.kind == StepKind::kSend) sends_[{self, step.peer}].push_back(i);
        if (isReceive(step)) receives_[{step.peer, self}].push_back(i);
      }
    }
  }

  int count() {
    if (!matched()) return -1;
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < plans_.size(); ++rank) {
        for (size_t i = 0; i < plans_[rank].steps.size(); ++i) {
          if (known_[rank][i]) continue;
          known_[rank][i] = hopsOf(rank, i);
          progress = progress || known_[rank][i];
        }
      }
    }
    int most = 0;
    for (const auto& steps : known_) {
      for (const auto& hops : steps) {
        if (!hops) return -1;
        most = std::max(most, *hops);
      }
    }
    return most;
  }

 private:
  using Link = std::pair<int, int>;  // from, to

  bool matched() const {
    if (sends_.size() != receives_.size()) return false;
    for (const auto& [link, sends] : sends_) {
      const auto found = receives_.find(link);
      if (found == receives_.end() || found->second.size() != sends.size()) return false;
      for (size_t k = 0; k < sends.size(); ++k) {
        const Step& send = plans_[static_cast<size_t>(link.first)].steps[sends[k]];
        const Step& recv = plans_[static_cast<size_t>(link.second)].steps[found->second[k]];
        if (send.bytes != recv.bytes) return false;
      }
    }
    return true;
  }

  std::optional<int> hopsOf(size_t rank, size_t index) const {
    const Step& step = plans_[rank].steps[index];
    int hops = 0;
    for (uint32_t i = 0; i < step.after; ++i) {
      if (!known_[rank][i]) return std::nullopt;
      hops = std::max(hops, *known_[rank][i]);
    }
    if (step.follow >= 0) {
      const auto& followed = known_[rank][static_cast<size_t>(step.follow)];
      if (!followed) return std::nullopt;
      hops = std::max(hops, *followed);
    }
    if (isReceive(step)) {
      const Link link{step.peer, static_cast<int>(rank)};
      const auto& receives = receives_.at(link);
      const auto k = std::find(receives.begin(), receives.end(), index) - receives.begin();
      const size_t sent = sends_.at(link)[static_cast<size_t>(k)];
      const auto& send = known_[static_cast<size_t>(step.peer)][sent];
      if (!send) return std::nullopt;
      hops = std::max(hops, *send + 1);
    }
    return hops;
  }

  const Plans& plans_;
  std::vector<std::vector<std::optional<int>>> known_;
  std::map<Link, std::vector<size_t>> sends_, receives_;
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
