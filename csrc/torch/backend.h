#pragma once

#include "engine/flight_recorder.h"
#include "engine/group.h"
#include "torch/coalescing.h"
#include "torch/compat.h"
#include "torch/errors.h"
#include "torch/process.h"
#include "torch/work.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ringcomm {

class Batch;
struct CallRecorder;

// torch.distributed's view of a group. Each collective checks its tensors, describes the operation,
// and hands it to the group through launch(); everything else happens in the engine. Methods may be
// called from any thread; those of the base class that are not overridden say that they are not
// supported.
class RingBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  // What pg_options can be: torch's timeout, and ringcomm's options by their names.
  struct RingOptions final : c10d::Backend::Options {
    explicit RingOptions(std::chrono::milliseconds limit)
        : c10d::Backend::Options("ringcomm", limit) {}
    c10::intrusive_ptr<c10d::Backend::Options> clone() const RC_OVERRIDE_2_14 {
      return c10::make_intrusive<RingOptions>(*this);
    }
    ringcomm::Options values;
    Given given;  // what has been asked for by name: it holds against the environment
  };

  // Where the backend's group is and what it is called.
  struct Place {
    std::string groupName;
    std::string routeTo;
    int localRanks = 1;
  };

  // Blocks until all ranks are there; without the GIL, please.
  RingBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
              c10::intrusive_ptr<RingOptions> options, const Place& place);
  ~RingBackend() override;

  // What the user has to be warned of; empty: nothing.
  const std::string& lateOptionsWarning() const { return lateOptions_; }

  const std::string getBackendName() const override { return "ringcomm"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  // Batches of isend and irecv gain nothing from being announced; each has a Work of its own. Calls
  // that are bracketed all the same are given one Work in the end.
  bool supportsCoalescing() const override { return false; }
  void startCoalescing() override { coalescing_.begin(); }
  WorkPtr endCoalescing() override { return coalescing_.end(getRank()); }

  // A group of some of this one's ranks, in this order; nullptr where this rank is not among them.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return allreduce(tensors, opts);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& opts) override;
  // One tensor for the parts of all ranks; looked at on the root only.
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& opts) RC_OVERRIDE_2_14;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& outputSplits,
                        std::vector<int64_t>& inputSplits,
                        const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) override;

  WorkPtr send(Tensors& tensors, int dstRank, int tag) override;
  WorkPtr recv(Tensors& tensors, int srcRank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

  void setSequenceNumberForGroup() override {}
  // The collectives called so far; one that is several operations counts once.
  uint64_t getSequenceNumberForGroup() override { return collectives_.load(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void enableCollectivesTiming() override {}  // durations are always measured
  c10d::ErrorType getError() override { return errorTypeOf(group_->failure()); }
  void abort() override { group_->abort("aborted the process group"); }
  void shutdown() override { group_->close(); }

  // Before the interpreter ends: threads of ours that would take the GIL later would be killed in
  // the middle of what they do.
  static void prepareExit();

 private:
  void setReduction(const Batch& batch, OpDesc& desc, const at::Tensor& tensor,
                    const c10d::ReduceOp& op) const;
  void addAllGather(Batch& batch, const at::Tensor& output, const at::Tensor& input) const;
  void addBlocks(Batch& batch, const Tensors& outputs, const at::Tensor& input) const;
  void addSparseSum(Batch& batch, const at::Tensor& tensor, const c10d::AllreduceOptions& opts);
  void addReduceScatter(Batch& batch, const at::Tensor& output, const at::Tensor& input,
                        const c10d::ReduceOp& op) const;
  void addAllReduce(Batch& batch, const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  WorkPtr transfer(Tensors& tensors, OpDesc::Transfer transfer, int peer, int tag, Batch batch);
  std::chrono::milliseconds timeoutOr(std::chrono::milliseconds given) const;
  WorkPtr launch(Batch batch, std::chrono::milliseconds timeout, bool async);
  WorkPtr start(Batch batch, bool async);  // whose call has its timeout
  std::vector<uint64_t> globalRanks() const;
  std::shared_ptr<const FlightRecorder::Group> recordedGroup();
  void record(CallRecorder& recorder, RingWork::Call& call);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Place place_;
  c10::intrusive_ptr<RingOptions> options_;
  std::string lateOptions_;  // before engine_, whose making sets it
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Group> group_;
  std::atomic<uint64_t> collectives_{0};
  std::atomic<uint64_t> transfers_{0};
  Coalescing coalescing_;
  CopyingWorks copies_;
  std::mutex recordedGroupMutex_;
  std::shared_ptr<const FlightRecorder::Group> recordedGroup_;
  uint64_t monitoredBarriers_ = 0;
  std::string lastSplitName_;
  c10::weak_intrusive_ptr<c10d::Backend> lastSplit_{c10::intrusive_ptr<c10d::Backend>()};
};

}  // namespace ringcomm
