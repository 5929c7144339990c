#pragma once

#include "coll/select.h"
#include "engine/channel.h"
#include "engine/op.h"
#include "engine/run.h"
#include "engine/share_host.h"

#include <memory>
#include <string>
#include <vector>

namespace ringcomm {

// A group's part on one loop: the operations in flight there, and a channel to each peer. An
// operation over several lanes has a run in several shares, each over its own range of elements;
// every share starts operations in the group's order. On its loop.
class Share final : public ChannelObserver, public Runnable {
 public:
  struct Setup {
    ShareHost* host = nullptr;
    Loop* loop = nullptr;
    int rank = 0;
    int world = 1;
    uint32_t sliceBytes = 0;
    Tuning tuning;
    Isa isa = Isa::kScalar;
  };

  explicit Share(const Setup& setup);
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  // Starts part `index` of `parts` of the operation. After a failure it ends at once.
  void start(const std::shared_ptr<Op>& op, uint64_t index, uint64_t parts);
  // Looks again at runs that waited for an operation of another share.
  void resume();
  // The connection to a peer is there.
  void attach(int peer, UniqueFd fd);
  // The peer has taken leave: what still waits for a connection with it waits in vain.
  void peerLeft(int peer);
  // Ends all runs and connections; nothing is started after it, and the loop not used any more.
  void abandon(const Status& cause);

 private:
  void progressed(Run& run) noexcept override;
  void laneLost(Channel& channel, int error) noexcept override;
  void violated(Channel& channel, const Status& why) noexcept override;
  void mismatched(Channel& channel, Run& run, const FrameHeader& theirs,
                  const FrameHeader& mine) noexcept override;
  void stirred() noexcept override;
  void run() noexcept override;

  Run::Setup makeRun(const std::shared_ptr<Op>& op, uint64_t index, uint64_t parts) const;
  void enqueue(Run& run);
  void lookAround();
  void askAboutStuck();
  void unexpected(Channel& channel, const FrameHeader& theirs);
  void timeOut(Run& run);
  int whomItWaitsFor(Run& run, std::string& how) const;
  void settle(Run& run);
  bool mayFinish(const Run& run) const;
  void nudgeChannels() noexcept;
  void finish(Run& run);

  const Setup setup_;
  Loop& loop_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by peer; null until first used
  std::vector<std::unique_ptr<Run>> runs_;          // in order of operations
  uint64_t nextSequence_ = 0;                       // all operations below have started here

  // While anything goes on, the share looks around every now and then.
  Loop::TimerId lookTimer_{};
  bool looking_ = false;
  bool stirred_ = false;       // since it last looked
  uint64_t seenSequence_ = 0;  // what was in flight for longest then, and how far it was
  uint64_t seenProgress_ = UINT64_MAX;
  Status failure_;
};

}  // namespace ringcomm
