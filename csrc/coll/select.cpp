#include "coll/select.h"

#include "coll/algorithms.h"

#include <algorithm>
#include <limits>

namespace ringcomm {
namespace {

bool always(const Load&, const Tuning&) { return true; }

bool directAllReduceFits(const Load& load, const Tuning& tuning) {
  if (load.world == 1) return true;
  return load.bytes <= tuning.directAllReduceBytes / static_cast<uint64_t>(load.world - 1);
}

// Between two ranks it is the ring with more scratch.
bool scatterGatherAllReduceFits(const Load& load, const Tuning& tuning) {
  return load.world > 2 && load.bytes <= tuning.scatterGatherAllReduceBytes;
}

bool directReduceFits(const Load& load, const Tuning& tuning) {
  return load.bytes <= tuning.directReduceBytes;
}

bool treeBroadcastFits(const Load& load, const Tuning& tuning) {
  return load.bytes <= tuning.treeBroadcastBytes;
}

bool directAllGatherFits(const Load& load, const Tuning& tuning) {
  return load.bytes <= tuning.directAllGatherBytes;
}

// Between two ranks it is the ring with more scratch.
bool directReduceScatterFits(const Load& load, const Tuning& tuning) {
  return load.world > 2 && load.bytes <= tuning.directReduceScatterBytes;
}

bool directBarrierFits(const Load& load, const Tuning& tuning) {
  return load.world <= tuning.directBarrierRanks;
}

// Of a collective's rows the first that fits is taken; the last fits always. An algorithm that does
// not fit some size fits no larger one: algorithmTable() relies on it.
constexpr Algorithm kAlgorithms[] = {
    {Collective::kAllReduce, "direct", directAllReduce, directAllReduceFits},
    {Collective::kAllReduce, "scatter-gather", scatterGatherAllReduce, scatterGatherAllReduceFits},
    {Collective::kAllReduce, "ring", ringAllReduce, always},
    {Collective::kReduce, "direct", directReduce, directReduceFits},
    {Collective::kReduce, "chain", chainReduce, always},
    {Collective::kBroadcast, "tree", treeBroadcast, treeBroadcastFits},
    {Collective::kBroadcast, "chain", chainBroadcast, always},
    {Collective::kAllGather, "direct", directAllGather, directAllGatherFits},
    {Collective::kAllGather, "ring", ringAllGather, always},
    {Collective::kGather, "direct", directGather, always},
    {Collective::kScatter, "direct", directScatter, always},
    {Collective::kReduceScatter, "direct", directReduceScatter, directReduceScatterFits},
    {Collective::kReduceScatter, "ring", ringReduceScatter, always},
    {Collective::kAllToAll, "direct", directAllToAll, always},
    {Collective::kBarrier, "direct", directBarrier, directBarrierFits},
    {Collective::kBarrier, "dissemination", disseminationBarrier, always},
};

const Algorithm& choose(Collective kind, const Load& load, const Tuning& tuning) {
  if (const Algorithm* forced = tuning.forced[static_cast<size_t>(kind)]) return *forced;
  const Algorithm* chosen = nullptr;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind != kind) continue;
    chosen = &algorithm;
    if (algorithm.fits(load, tuning)) break;
  }
  return *chosen;
}

std::string join(const std::string& list, const char* word) {
  return list.empty() ? word : list + ", " + word;
}

Result<Collective> findCollective(std::string_view name) {
  std::string allowed;
  for (size_t i = 0; i < kCollectiveCount; ++i) {
    const auto kind = static_cast<Collective>(i);
    if (name == collectiveName(kind)) return kind;
    allowed = join(allowed, collectiveName(kind));
  }
  return Status(Code::kInvalidArgument, "no collective '" + std::string(name) +
                                            "' to force an algorithm of; allowed: " + allowed);
}

}  // namespace

Result<const Algorithm*> findAlgorithm(Collective kind, std::string_view name) {
  std::string allowed;
  for (const Algorithm& algorithm : kAlgorithms) {
    if (algorithm.kind != kind) continue;
    if (name == algorithm.name) return &algorithm;
    allowed = join(allowed, algorithm.name);
  }
  return Status(Code::kInvalidArgument, std::string("no ") + collectiveName(kind) + " algorithm '" +
                                            std::string(name) + "'; allowed: auto, " + allowed);
}

Status forceAlgorithms(std::string_view text, Tuning& tuning) {
  auto forced = tuning.forced;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return {Code::kInvalidArgument, "forced algorithm '" + std::string(item) +
                                          "' is not of the form collective=algorithm"};
    }
    Result<Collective> kind = findCollective(item.substr(0, equals));
    RC_RETURN_IF_ERROR(kind.status());
    const std::string_view name = item.substr(equals + 1);
    const Algorithm*& entry = forced[static_cast<size_t>(*kind)];
    if (name == "auto") {
      entry = nullptr;
      continue;
    }
    Result<const Algorithm*> algorithm = findAlgorithm(*kind, name);
    RC_RETURN_IF_ERROR(algorithm.status());
    entry = *algorithm;
  }
  tuning.forced = forced;
  return {};
}

const Algorithm& chooseAlgorithm(const CollectiveSpec& spec, const Tuning& tuning) {
  return choose(spec.kind, {spec.world, collectiveBytes(spec)}, tuning);
}

Plan makePlan(const Algorithm& algorithm, const CollectiveSpec& spec) {
  Plan plan = algorithm.plan(spec);
  plan.algorithm = algorithm.name;
  return plan;
}

Plan makePlan(const CollectiveSpec& spec, const Tuning& tuning) {
  return makePlan(chooseAlgorithm(spec, tuning), spec);
}

std::vector<AlgorithmRange> algorithmTable(int world, const Tuning& tuning) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  std::vector<AlgorithmRange> rows;
  for (size_t i = 0; i < kCollectiveCount; ++i) {
    const auto kind = static_cast<Collective>(i);
    const auto chosen = [&](uint64_t bytes) { return &choose(kind, {world, bytes}, tuning); };
    uint64_t first = 0;
    while (true) {
      const Algorithm* algorithm = chosen(first);
      uint64_t last = first;
      for (uint64_t step = kMax / 2 + 1; step > 0; step /= 2) {
        if (step <= kMax - last && chosen(last + step) == algorithm) last += step;
      }
      rows.push_back({kind, first, last, algorithm->name});
      if (last == kMax) break;
      first = last + 1;
    }
  }
  return rows;
}

}  // namespace ringcomm
