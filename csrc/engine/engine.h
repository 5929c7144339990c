#pragma once

#include "base/log.h"
#include "base/options.h"
#include "io/loop.h"
#include "net/candidates.h"
#include "net/listener.h"
#include "reduce/kernels.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/types.h>

namespace ringcomm {

class Group;

// What a process has once for all its groups: the progress threads and the listening port. It must
// outlive its groups, and be destroyed on none of its own threads. After a fork it lives on in the
// parent only; in the child every use is refused.
class Engine {
 public:
  static Result<std::shared_ptr<Engine>> create(const Options& options, int localRanks, Logger log);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread.
  Loop& loop(size_t index) const { return *loops_[index % loops_.size()]; }
  Loop& controlLoop() const { return *loops_[0]; }
  size_t loopCount() const { return loops_.size(); }
  const Logger& logger() const { return logger_; }
  const SocketOptions& sockets() const { return sockets_; }
  Isa isa() const { return isa_; }
  bool forked() const;
  Result<Candidates> candidates(const std::string& routeTo) const;

  // A different number for each group, which spreads their lanes over the loops.
  size_t numberGroup();
  // From here on peers may connect to the group.
  void addGroup(const GroupId& id, const std::shared_ptr<Group>& group);
  void removeGroup(const GroupId& id);

 private:
  Engine(const Options& options, Isa isa, Logger log);

  Status startLoops(int count);
  Status listen(uint16_t port);
  std::shared_ptr<Group> findGroup(const GroupId& id);

  const pid_t owner_;
  const Logger logger_;
  const SocketOptions sockets_;
  const std::string interfaces_;
  const Isa isa_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::unique_ptr<Listener> listener_;  // on the control loop

  std::mutex mutex_;
  std::map<GroupId, std::weak_ptr<Group>> groups_;
  size_t groupsMade_ = 0;
};

}  // namespace ringcomm
