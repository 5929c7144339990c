#pragma once

#include <cstdint>
#include <vector>

namespace ringcomm {

// A plan is what one rank does for one collective, as data: no fd, no thread, no clock. The engine
// executes it; tests run the plans of all ranks against each other in memory.
//
// Buffers are named by index into the operation's buffer table. kScratch is private memory of
// `Plan::scratchBytes`; the others are the operation's own tensors, the same of them on every rank
// unless it says otherwise. What is not called in place or output is never written:
//
//   all_reduce, broadcast  kData, in place
//   reduce                 kInput; on the root also kOutput, which may be the input itself
//   all_gather, gather     kOwn, the rank's block; output kBlocks + r, the block of rank r
//                          (gather: on the root only)
//   scatter                output kOwn, the rank's block; kBlocks + r, what goes to rank r (on the
//                          root only)
//   reduce_scatter         output kOwn, the sum of the ranks' blocks for this one; kBlocks + r, the
//                          part for rank r
//   all_to_all             kInput + r, what goes to rank r; output kInput + world + r, what comes
//                          from rank r
//
// A rank's own block may also be its own place among all of them (kBlocks + rank).
enum BufferIndex : uint16_t {
  kScratch = 0,
  kData = 1,
  kInput = 1,
  kOutput = 2,
  kOwn = 1,
  kBlocks = 2,
};

struct Region {
  uint16_t buffer = kScratch;
  uint64_t offset = 0;  // bytes
};

enum class StepKind : uint8_t {
  kSend,        // src -> peer
  kRecv,        // peer -> dst
  kRecvReduce,  // dst = src op (bytes from peer), while they are in cache; src may be dst
  kReduce,      // dst = part 0 op part 1 .. op part parts-1, part i at src.offset + i * bytes
  kCopy,        // dst = src
};

// Messages between two ranks are matched by their order alone: the k-th send to a peer is the k-th
// receive there, with the same number of bytes. Steps of zero bytes are real messages (a barrier is
// made of them); a planner leaves out the ones it does not want, on both sides.
//
// When a step may run:
//  - after: all of the plan's first `after` steps are complete;
//  - follow (kSend only): the index of a receiving step of equally many bytes over the same region.
//    The send may go as far as that step has got, byte by byte: this is the pipeline;
//  - sends to one peer start in plan order, as do receives from one peer. Different peers, and the
//    two directions of one peer, advance independently of each other. Local steps start in plan
//    order, or in any: a plan has to be right for both.
struct Step {
  StepKind kind = StepKind::kCopy;
  int32_t peer = -1;
  uint64_t bytes = 0;
  Region dst;
  Region src;
  uint32_t parts = 1;   // kReduce
  int32_t follow = -1;  // kSend
  uint32_t after = 0;
  bool finish = false;  // kRecvReduce, kReduce: the last reduction of these bytes (AVG divides now)
};

struct Plan {
  const char* algorithm = "";
  std::vector<Step> steps;
  uint64_t scratchBytes = 0;
};

}  // namespace ringcomm
