#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "coll/collective.h"
#include "net/frame.h"
#include "reduce/kernels.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ringcomm {

inline constexpr int kAnyPeer = -1;

struct Buffer {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

// What a caller asks for. The memory of `buffers` must stay valid and untouched by others until the
// operation is done. buffers[i] has index i + 1 in the plan (index 0 is the plan's scratch).
struct OpDesc {
  Collective kind = Collective::kBarrier;
  DType dtype = DType::kByte;
  ReduceOp reduceOp = ReduceOp::kNone;
  // Whether the caller has scaled its elements before a sum: part of the signature only.
  enum class Scaled : uint8_t { kNo, kByFactor, kByWorld };
  Scaled scaled = Scaled::kNo;
  int root = -1;
  // Elements, as every rank must give them: the signature. kPerMessage where ranks have different
  // sizes; then each pair of ranks compares what it exchanges.
  static constexpr uint64_t kPerMessage = UINT64_MAX;
  uint64_t count = 0;
  // Point-to-point instead of a collective: one buffer to or from `peer` (kAnyPeer: from whoever
  // sends first).
  enum class Transfer : uint8_t { kNone, kSend, kReceive };
  Transfer transfer = Transfer::kNone;
  int peer = kAnyPeer;
  int tag = 0;
  std::vector<Buffer> buffers;
  Duration timeout{};
};

// "all_reduce #17 (1000 x float32, sum)": a call in the words of the one who made it.
std::string describeCall(const FrameHeader& signature);

// One operation in flight. Shares on several loops work on it; whichever ends last completes it,
// and only then may the caller touch its memory again. All methods may be called from any thread.
class Op {
 public:
  Op(OpDesc desc, uint64_t sequence, TimePoint start);

  const OpDesc& desc() const noexcept { return desc_; }
  uint64_t sequence() const noexcept { return signature_.sequence; }
  TimePoint deadline() const noexcept { return deadline_; }
  // What every frame of this operation says; message, length and offset are the frame's own.
  const FrameHeader& signature() const noexcept { return signature_; }
  std::string describe() const;

  // A receive: from whom it came; read only when done.
  int source() const noexcept { return source_; }
  void setSource(int peer) noexcept { source_ = peer; }

  // Before the operation is handed to the shares: how many there are, and whom to tell on the loop
  // that completes it. `onDone` must be quick, must not throw and must not wait.
  void expectShares(int shares) noexcept { remaining_.store(shares); }
  void onDone(std::function<void(Op&)> callback) { onDone_ = std::move(callback); }

  // Operations before this one that use some of the same memory: it must not start before they are
  // done. Set before it is handed to the shares.
  void startAfter(const std::shared_ptr<Op>& earlier);
  bool mayStart() const noexcept;
  // Whether a later operation waits for this one.
  bool awaited() const noexcept { return awaited_.load(); }
  // Whether the two use common memory.
  bool overlaps(const Op& other) const noexcept;

  // A share has ended and does not touch the memory any more. The first failure is the one kept.
  void completeShare(const Status& status);

  bool done() const noexcept { return done_.load(); }
  // Read only when done.
  const Status& status() const noexcept { return status_; }

  // Sleeps until it is done or the time has come; gives done().
  bool waitUntil(TimePoint until);

 private:
  OpDesc desc_;
  FrameHeader signature_;
  TimePoint deadline_;
  std::function<void(Op&)> onDone_;
  // Weak: an operation is held until it is done, and nobody needs to hold it longer for this.
  std::vector<std::weak_ptr<Op>> earlier_;
  std::atomic<bool> awaited_{false};
  std::atomic<int> remaining_{1};
  int source_ = kAnyPeer;
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  Status status_;  // guarded by mutex_ until done
};

}  // namespace ringcomm
