#include "engine/called.h"

#include <doctest/doctest.h>

#include <vector>

using namespace ringcomm;

namespace {

std::shared_ptr<Op> opOf(Collective kind, int root, std::vector<uint64_t> bytes,
                         uint64_t count = OpDesc::kPerMessage, uint64_t sequence = 5) {
  OpDesc desc;
  desc.kind = kind;
  desc.dtype = DType::kFloat32;
  desc.root = root;
  desc.count = count;
  for (const uint64_t size : bytes) {
    desc.buffers.push_back({nullptr, size});
  }
  return std::make_shared<Op>(desc, sequence, Clock::now());
}

ControlMessage noteBy(int rank, int peer, const std::shared_ptr<Op>& op) {
  const Tuning tuning;
  return noteOf(*op, {rank, 2, &tuning}, peer);
}

Status compared(const std::shared_ptr<Op>& by0, const std::shared_ptr<Op>& by1) {
  return compareNotes("rank 0", noteBy(0, 1, by0), "rank 1", noteBy(1, 0, by1));
}

}  // namespace

TEST_CASE("the last calls are found by number, others are not") {
  CalledOps called;
  CHECK(called.find(0) == nullptr);
  for (uint64_t i = 0; i < 1000; ++i) {
    called.add(opOf(Collective::kBarrier, -1, {}, 0, i));
  }
  REQUIRE(called.find(999) != nullptr);
  CHECK(called.find(999)->sequence() == 999);
  CHECK(called.find(960)->sequence() == 960);
  CHECK(called.find(1000) == nullptr);
  CHECK(called.find(3) == nullptr);
}

TEST_CASE("a note says what a plan gives to a peer and takes from it") {
  const auto gather = opOf(Collective::kGather, 0, {40});
  CHECK(noteBy(1, 0, gather).gives == 40);
  CHECK(noteBy(1, 0, gather).takes == 0);
  const ControlMessage root = noteBy(0, 1, opOf(Collective::kGather, 0, {40, 40, 12}));
  CHECK(root.gives == 0);
  CHECK(root.takes == 12);
  CHECK(root.call.root == 0);
  CHECK(root.call.sequence == 5);
  const ControlMessage both = noteBy(0, 1, opOf(Collective::kAllToAll, -1, {4, 8, 4, 16}));
  CHECK(both.gives == 8);
  CHECK(both.takes == 16);
}

TEST_CASE("notes that fit are no mismatch, also where one rank counts by message") {
  CHECK(compared(opOf(Collective::kGather, 0, {40, 40, 12}), opOf(Collective::kGather, 0, {12})));
  CHECK(compared(opOf(Collective::kAllToAll, -1, {4, 8, 4, 16}),
                 opOf(Collective::kAllToAll, -1, {16, 4, 8, 4})));
  CHECK(compared(opOf(Collective::kAllGather, -1, {8, 8, 8}),
                 opOf(Collective::kAllGather, -1, {8, 8, 8}, 2)));
  CHECK(compared(opOf(Collective::kBarrier, -1, {}, 0), opOf(Collective::kBarrier, -1, {}, 0)));
}

TEST_CASE("notes that differ in the call or in the sizes are a mismatch in words") {
  Status status =
      compared(opOf(Collective::kGather, 0, {4, 4, 4}), opOf(Collective::kGather, 1, {4, 4, 4}));
  CHECK(status.code() == Code::kMismatch);
  CHECK(status.message() ==
        "the ranks call different operations: rank 0 called gather #5 (float32, root 0), but "
        "rank 1 called gather #5 (float32, root 1)");
  status = compared(opOf(Collective::kGather, 0, {40, 40, 12}), opOf(Collective::kGather, 0, {0}));
  CHECK(status.message() ==
        "the ranks call different operations: rank 0 called gather #5 (3 x float32, root 0), but "
        "rank 1 called gather #5 (0 x float32, root 0); the sizes are of what rank 1 has for "
        "rank 0");
  status = compared(opOf(Collective::kAllToAll, -1, {4, 8, 4, 16}),
                    opOf(Collective::kAllToAll, -1, {16, 4, 0, 4}));
  CHECK(status.message() ==
        "the ranks call different operations: rank 0 called all_to_all #5 (2 x float32), but "
        "rank 1 called all_to_all #5 (0 x float32); the sizes are of what rank 0 has for rank 1");
  status = compared(opOf(Collective::kBroadcast, 0, {400}, 100),
                    opOf(Collective::kBroadcast, 0, {404}, 101));
  CHECK(status.code() == Code::kMismatch);
}
