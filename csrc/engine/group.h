#pragma once

#include "base/options.h"
#include "engine/called.h"
#include "engine/engine.h"
#include "engine/mailbox.h"
#include "engine/op.h"
#include "engine/peers.h"
#include "engine/rendezvous.h"
#include "engine/share.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ringcomm {

// The choice of algorithms that options ask for.
Result<Tuning> tuningOf(const Options& options);

// Who wants to form a group.
struct GroupSpec {
  std::string name;  // the same on all ranks, and of no other group of these processes
  int rank = 0;
  int world = 1;
  std::string routeTo;  // a host that all ranks reach, if known; see CandidateOptions
  Options options;
};

// The ranks that do collectives together. Methods may be called from any thread unless they say
// otherwise. Operations start in the order of submit() on every rank; the first failure is final:
// it ends all operations, is told to all peers, and is the answer to every later submit().
class Group final : public std::enable_shared_from_this<Group>,
                    public ShareHost,
                    public PeersObserver {
 public:
  // Meets the other ranks; blocks until all are there, at most until the deadline, and names those
  // that are missing. The engine must outlive the group.
  static Result<std::shared_ptr<Group>> join(Engine& engine, const GroupSpec& spec,
                                             Rendezvous& rendezvous, TimePoint deadline);
  ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return spec_.rank; }
  int world() const noexcept { return spec_.world; }
  const Options& options() const noexcept { return spec_.options; }  // as agreed on
  const Tuning& tuning() const noexcept { return tuning_; }

  // Starts an operation. `onDone` is called once, from the loop that completes it or, after a
  // failure, from here. With `waits` the caller promises to call wait() at once.
  std::shared_ptr<Op> submit(OpDesc desc, std::function<void(Op&)> onDone, bool waits);

  // Until the operation is done or the time has come; gives op.done(). Small operations are moved
  // on by the waiting thread itself.
  bool wait(Op& op, TimePoint until);

  // The number of operations submitted so far.
  uint64_t sequence() const;

  // The failure that ended the group, or ok.
  Status failure() const;

  // Ends the group for all ranks.
  void abort(const std::string& why);

  // Leaves the group: ends what is in flight here, closes all connections, and gives when nothing
  // of it runs any more. Others are told that this was in order. Not on a loop. Idempotent.
  void close();

  // On the control loop, for the listener.
  GroupKey admit(const Hello& hello) const;
  void accepted(UniqueFd fd, const Hello& hello);

  // ShareHost, PeersObserver: on loops.
  void wantPeer(int peer, TimePoint deadline) override;
  void wantMailFrom(int peer, TimePoint deadline) override;
  void laneLost(int peer, int error) override;
  void fail(const Status& cause) override;
  std::shared_ptr<Op> called(uint64_t sequence) const override;
  void compareCalls(int peer, const std::shared_ptr<Op>& op, const Status& verdict) override;
  void timedOut(int peer, const std::shared_ptr<Op>& op, const Status& verdict) override;
  void mailUnreachable(int peer, const Status& why) override;
  void heardCall(int peer, const ControlMessage& theirs) override;
  void peerLeft(int peer) override;
  bool hasCalled(uint64_t sequence) const override;
  std::string peerName(int peer) const override;
  void laneConnected(int peer, int lane, UniqueFd fd) override;
  void peersFailed(const Status& cause) override { fail(cause); }

 private:
  friend class Joiner;  // join()'s steps, in join.cpp

  Group(Engine& engine, GroupSpec spec);

  void prepare(const std::string& secret, uint32_t generation);
  void introduce(std::vector<Candidates> candidates);
  Loop& loopOf(size_t lane) const { return engine_.loop(number_ + lane); }
  Loop& controlLoop() const { return engine_.controlLoop(); }
  std::function<void(Op&)> resumingAll(std::function<void(Op&)> onDone);
  void orderByMemory(const std::shared_ptr<Op>& op);
  uint64_t partsOf(const OpDesc& desc) const;
  bool mayAssist(const OpDesc& desc) const;
  void endEverywhere(const Status& cause, bool leaving);

  Engine& engine_;
  GroupSpec spec_;
  Tuning tuning_;
  const GroupId id_;
  size_t number_ = 0;
  Duration spin_{};
  std::vector<std::unique_ptr<Share>> shares_;  // one a lane, each on its loop
  std::unique_ptr<Mailbox> mailbox_;            // on the loop of lane 0
  std::unique_ptr<Peers> peers_;                // on the control loop

  mutable std::mutex mutex_;        // guards what follows, and the order of posting operations
  std::vector<std::string> names_;  // by rank: "rank 2 (host)"
  uint64_t sequence_ = 0;
  std::vector<std::shared_ptr<Op>> inFlight_;
  CalledOps called_;
  Status failure_;
  bool closed_ = false;
};

}  // namespace ringcomm
