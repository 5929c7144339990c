#include "endings.h"
#include "engine/group.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <vector>

using namespace ringcomm;
using namespace ringcomm::testing;

// Calls that do not fit each other, and of which no header that is compared tells.
namespace {

// Memory of floats for one call, each buffer of its own size.
class Memory {
 public:
  OpDesc desc(Collective kind, int root, const std::vector<size_t>& counts,
              uint64_t count = OpDesc::kPerMessage) {
    OpDesc made;
    made.kind = kind;
    made.dtype = DType::kFloat32;
    made.root = root;
    made.count = count;
    if (kind == Collective::kReduce || kind == Collective::kReduceScatter) {
      made.reduceOp = ReduceOp::kSum;
    }
    floats_.clear();
    for (const size_t each : counts) {
      floats_.emplace_back(each, 1.0F);
    }
    for (auto& buffer : floats_) {
      made.buffers.push_back({reinterpret_cast<std::byte*>(buffer.data()), buffer.size() * 4});
    }
    return made;
  }

 private:
  std::vector<std::vector<float>> floats_;
};

// What ended the group although the call itself may have ended well: some only send.
Status failureSoon(const Member& member, const Status& ended) {
  const TimePoint limit = Clock::now() + seconds(2 * kSlowness);
  while (ended.ok() && member.group->failure().ok() && Clock::now() < limit) {
    std::this_thread::sleep_for(seconds(0.005));
  }
  return ended.ok() ? member.group->failure() : ended;
}

using MakeCall = std::function<OpDesc(Memory&, int rank, int world)>;

void checkTold(const Setting& setting, const MakeCall& make,
               const std::vector<std::string>& words) {
  CAPTURE(setting.text());
  const auto ends = endings(setting, [&](const Member& member) {
    Memory memory;
    return failureSoon(member, member.call(make(memory, member.rank, setting.world)));
  });
  checkMismatch(ends, {"the ranks call different operations"});
  checkMismatch(ends, words);
}

const std::vector<Setting> kSettings = {{2}, {3}, {4, 2, 2}};

std::vector<size_t> rootsBuffers(int world, size_t own, size_t block) {
  std::vector<size_t> counts(static_cast<size_t>(world) + 1, block);
  counts[0] = own;
  return counts;
}

}  // namespace

TEST_CASE("different roots: everybody hears of both calls, whoever sends or waits") {
  // 2 is what fits into the sockets; of the large ones the senders wait, too.
  for (const size_t count : {size_t{2}, size_t{4'000'000}}) {
    const auto rooted = [&](Collective kind) {
      return [=](Memory& memory, int rank, int world) {
        const int root = rank == 1 ? 1 : 0;
        std::vector<size_t> counts = {count};
        if (rank == root && (kind == Collective::kGather || kind == Collective::kScatter)) {
          counts = rootsBuffers(world, count, count);
        } else if (rank == root && kind == Collective::kReduce) {
          counts = {count, count};
        }
        const bool sized = kind == Collective::kBroadcast || kind == Collective::kReduce;
        return memory.desc(kind, root, counts, sized ? count : OpDesc::kPerMessage);
      };
    };
    for (const Setting& setting : {Setting{2}, Setting{3}}) {
      for (const Collective kind : {Collective::kGather, Collective::kScatter, Collective::kReduce,
                                    Collective::kBroadcast}) {
        checkTold(setting, rooted(kind), {collectiveName(kind), "root 0", "root 1"});
      }
    }
  }
}

TEST_CASE("a part that one rank leaves out and another expects is told") {
  for (const Setting& setting : kSettings) {
    checkTold(setting,
              [](Memory& memory, int rank, int world) {
                const auto counts = rank == 0 ? rootsBuffers(world, 3, 3) : std::vector<size_t>{0};
                return memory.desc(Collective::kGather, 0,
                                   rank == 1   ? counts
                                   : rank == 0 ? counts
                                               : std::vector<size_t>{3});
              },
              {"gather #", "(3 x float32", "(0 x float32", "of what rank 1 ("});
    checkTold(setting,
              [](Memory& memory, int rank, int world) {
                const auto counts = rank == 0 ? rootsBuffers(world, 0, 0) : std::vector<size_t>{0};
                return memory.desc(Collective::kScatter, 0,
                                   rank == 1 ? std::vector<size_t>{7} : counts);
              },
              {"scatter #", "(7 x float32", "(0 x float32"});
    checkTold(setting,
              [](Memory& memory, int rank, int world) {
                // Rank 0 has nothing for the last one, which expects something.
                std::vector<size_t> counts(2 * static_cast<size_t>(world), 5);
                if (rank == 0) {
                  counts[static_cast<size_t>(world) - 1] = 0;
                }
                return memory.desc(Collective::kAllToAll, -1, counts);
              },
              {"all_to_all #", "(5 x float32", "(0 x float32"});
    checkTold(setting,
              [](Memory& memory, int rank, int world) {
                auto counts = rootsBuffers(world, 6, 6);
                if (rank != world - 1) {
                  counts.back() = 0;  // only the last rank thinks that it has a block
                }
                return memory.desc(Collective::kReduceScatter, -1, counts);
              },
              {"reduce_scatter #", "6 x float32", "0 x float32"});
  }
}

TEST_CASE("a part that nobody expects is told") {
  for (const Setting& setting : kSettings) {
    checkTold(setting,
              [](Memory& memory, int rank, int world) {
                auto counts = rank == 0 ? rootsBuffers(world, 3, 0) : std::vector<size_t>{0};
                if (rank == 0) {
                  counts[1] = 3;  // its own
                } else if (rank == 1) {
                  counts[0] = 4;
                }
                return memory.desc(Collective::kGather, 0, counts);
              },
              {"gather #", "(4 x float32", "(0 x float32"});
  }
}

TEST_CASE("a rank that has gone past the call of another is asked what it called instead") {
  const auto ends = endings({2}, [&](const Member& member) {
    Memory memory;
    Memory more;
    const OpDesc desc = member.rank == 0
                            ? memory.desc(Collective::kGather, 0, rootsBuffers(2, 3, 3))
                            : memory.desc(Collective::kScatter, 1, rootsBuffers(2, 0, 0));
    const Status status = member.call(desc);
    return failureSoon(member, status.ok() ? member.call(Member::barrierDesc()) : status);
  });
  checkMismatch(ends, {"gather #", "scatter #"});
}

TEST_CASE("ranks that are late, or ahead, and empty parts on both sides are no mismatch") {
  for (const Setting& setting : {Setting{3}, Setting{3, 2, 2, 4096}}) {
    CAPTURE(setting.text());
    const auto ends = endings(setting, [&](const Member& member) -> Status {
      Memory memory[4];
      for (int late = 0; late < 3; ++late) {
        if (member.rank == late) {
          std::this_thread::sleep_for(seconds(0.7));
        }
        // Rank 0 is ahead by as many broadcasts as fit into the sockets.
        for (int i = 0; i < 200; ++i) {
          RC_RETURN_IF_ERROR(member.call(memory[0].desc(Collective::kBroadcast, 0, {100}, 100)));
        }
        std::vector<size_t> counts(6, 0);
        const auto pair = [&](int other) { return member.rank + other == 2 ? size_t{9} : 0; };
        for (int other = 0; other < 3; ++other) {
          counts[static_cast<size_t>(other)] = counts[static_cast<size_t>(3 + other)] = pair(other);
        }
        RC_RETURN_IF_ERROR(member.call(memory[1].desc(Collective::kAllToAll, -1, counts)));
        const auto roots = rootsBuffers(3, 0, 0);
        RC_RETURN_IF_ERROR(member.call(memory[2].desc(
            Collective::kGather, 1, member.rank == 1 ? roots : std::vector<size_t>{0})));
        auto blocks = rootsBuffers(3, member.rank == 2 ? 8 : 0, 0);
        blocks[3] = 8;
        RC_RETURN_IF_ERROR(member.call(memory[3].desc(Collective::kReduceScatter, -1, blocks)));
      }
      return member.call(Member::barrierDesc());
    });
    for (const Ending& end : ends) {
      CAPTURE(end.status.message());
      CHECK(end.status.ok());
      CHECK(end.seconds > 2.0);
    }
  }
}
