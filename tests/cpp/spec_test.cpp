#include "engine/spec.h"

#include "coll/plan.h"

#include <doctest/doctest.h>

#include <vector>

using namespace ringcomm;

namespace {

using Sizes = std::vector<uint64_t>;

// Buffers of these sizes; nothing here touches their memory.
std::vector<Buffer> buffersOf(const Sizes& sizes) {
  std::vector<Buffer> buffers;
  for (const uint64_t bytes : sizes) {
    buffers.push_back({nullptr, bytes});
  }
  return buffers;
}

CollectiveSpec specFor(Collective kind, const Sizes& sizes, int rank, int root = -1) {
  OpDesc desc;
  desc.kind = kind;
  desc.dtype = DType::kFloat32;
  desc.root = root;
  desc.buffers = buffersOf(sizes);
  return specOf(desc, desc.buffers, rank, 3);
}

}  // namespace

TEST_CASE("what is reduced or broadcast counts elements") {
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    const CollectiveSpec spec = specFor(kind, {40}, 1, 2);
    CHECK(spec.kind == kind);
    CHECK(spec.rank == 1);
    CHECK(spec.world == 3);
    CHECK(spec.root == 2);
    CHECK(spec.elementSize == 4);
    CHECK(spec.count == 10);
    CHECK(collectiveBytes(spec) == 40);
  }
}

TEST_CASE("the root of a reduce has a second buffer, which changes nothing") {
  CHECK(specFor(Collective::kReduce, {40, 40}, 2, 2).count ==
        specFor(Collective::kReduce, {40}, 0, 2).count);
}

TEST_CASE("blocks are those of all ranks, also where they differ or are empty") {
  for (const Collective kind : {Collective::kAllGather, Collective::kReduceScatter}) {
    const CollectiveSpec spec = specFor(kind, {8, 4, 8, 0}, 1);
    CHECK(spec.blockBytes == Sizes{4, 8, 0});
    CHECK(collectiveBytes(spec) == 12);
  }
}

TEST_CASE("gather and scatter know all blocks on the root, and one elsewhere") {
  for (const Collective kind : {Collective::kGather, Collective::kScatter}) {
    const CollectiveSpec root = specFor(kind, {8, 4, 8, 12}, 1, 1);
    CHECK(root.blockBytes == Sizes{4, 8, 12});
    const CollectiveSpec other = specFor(kind, {12}, 2, 1);
    CHECK(other.blockBytes == Sizes{0, 0, 12});
    // The choice of an algorithm must not depend on what only one of them knows.
    CHECK(collectiveBytes(root) == collectiveBytes(other));
  }
}

TEST_CASE("all_to_all has what goes out before what comes in") {
  const CollectiveSpec spec = specFor(Collective::kAllToAll, {4, 8, 12, 16, 8, 0}, 1);
  CHECK(spec.sendBytes == Sizes{4, 8, 12});
  CHECK(spec.recvBytes == Sizes{16, 8, 0});
  CHECK(collectiveBytes(spec) == 0);
}

TEST_CASE("a barrier has nothing") {
  const CollectiveSpec spec = specFor(Collective::kBarrier, {}, 2);
  CHECK(spec.rank == 2);
  CHECK(spec.count == 0);
  CHECK(spec.blockBytes.empty());
  CHECK(collectiveBytes(spec) == 0);
}

TEST_CASE("the buffers of a share count, not those of the whole operation") {
  OpDesc desc;
  desc.kind = Collective::kAllGather;
  desc.dtype = DType::kFloat64;
  desc.buffers = buffersOf({800, 800, 800, 800});
  const CollectiveSpec spec = specOf(desc, buffersOf({80, 80, 80, 80}), 0, 3);
  CHECK(spec.blockBytes == Sizes{80, 80, 80});
  CHECK(spec.elementSize == 8);
}
