#pragma once

#include "base/options.h"
#include "base/status.h"
#include "coll/collective.h"
#include "coll/plan.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringcomm {

struct Tuning;

// What an algorithm is chosen by: equal on all ranks of a group, as the choice has to be.
struct Load {
  int world = 1;
  uint64_t bytes = 0;  // collectiveBytes()
};

// A way to do a collective. Only the entries of select.cpp's table exist, and they live for ever.
struct Algorithm {
  Collective kind;
  const char* name;
  Plan (*plan)(const CollectiveSpec& spec);
  bool (*fits)(const Load& load, const Tuning& tuning);
};

inline uint64_t presetOf(int64_t Options::* field) {
  return static_cast<uint64_t>(Options().*field);
}

// Where one algorithm gives way to the next, and what the user insists on. Sizes in bytes, each the
// largest that still takes the algorithm it names. All ranks of a group have to use equal values.
struct Tuning {
  // all_reduce, direct: of what a rank sends in all, which is N - 1 times the vector. On loopback a
  // hop costs 10-20 us, about what it takes to copy and add 64 KiB.
  uint64_t directAllReduceBytes = presetOf(&Options::directBytes);
  // all_reduce, scatter-gather (three ranks or more): of the vector. The ring sends as many bytes
  // and hides its delays as soon as a block takes longer than one on the wire, so on a long path
  // this is worth raising to about N x rate x one-way delay: 5 MiB for 4 hosts, 1 Gbit/s, 10 ms. On
  // a short one the flows to one receiver share its link unevenly: 1 MiB among 4 hosts at 1 Gbit/s
  // took 15.3 ms in two exchanges, and 13.5 ms (97 % of the wire) around the ring.
  uint64_t scatterGatherAllReduceBytes = presetOf(&Options::scatterGatherBytes);
  // reduce, direct: of the vector. The root takes in N - 1 vectors where a chain makes N - 1 hops,
  // so the two meet where a vector costs as much as a hop, for any N.
  uint64_t directReduceBytes = uint64_t{64} << 10;
  // broadcast, tree: of the vector. From here on the root sending it several times costs more than
  // a chain's hops.
  uint64_t treeBroadcastBytes = uint64_t{64} << 10;
  // all_gather, direct: of all blocks together. It is the second half of scatter-gather.
  uint64_t directAllGatherBytes = uint64_t{1} << 20;
  // reduce_scatter, direct (three ranks or more): of all blocks together. It is the first half of
  // scatter-gather.
  uint64_t directReduceScatterBytes = uint64_t{1} << 20;
  // barrier, direct: in ranks. 56 messages in one hop for 8 ranks, against 24 in three.
  int directBarrierRanks = 8;

  // By collective; null: chosen by size. Set with forceAlgorithms().
  std::array<const Algorithm*, kCollectiveCount> forced{};
};

// The algorithm of that name; the error lists those that there are.
Result<const Algorithm*> findAlgorithm(Collective kind, std::string_view name);

// Sets `tuning.forced` from "all_reduce=ring,broadcast=tree"; "auto" as a name takes a force back.
// Empty text changes nothing. On an error `tuning` is as it was.
Status forceAlgorithms(std::string_view text, Tuning& tuning);

// A collective that is cut into shares chooses once, for the whole, and plans each share with that:
// a share alone would look small.
const Algorithm& chooseAlgorithm(const CollectiveSpec& spec, const Tuning& tuning);
Plan makePlan(const Algorithm& algorithm, const CollectiveSpec& spec);

Plan makePlan(const CollectiveSpec& spec, const Tuning& tuning);

// Sizes (collectiveBytes) from `first` to `last`, both included, take this algorithm.
struct AlgorithmRange {
  Collective kind;
  uint64_t first;
  uint64_t last;
  const char* algorithm;
};

// What chooseAlgorithm() does, for people to read: by collective, sizes rising from 0 to 2^64 - 1
// without a gap.
std::vector<AlgorithmRange> algorithmTable(int world, const Tuning& tuning);

}  // namespace ringcomm
