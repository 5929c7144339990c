#pragma once

#include "base/clock.h"
#include "base/status.h"

#include <cstdint>
#include <memory>
#include <string>

namespace ringcomm {

class Op;

// What a group's parts on their loops need from the group. Callable from any loop.
class ShareHost {
 public:
  virtual void wantPeer(int peer, TimePoint deadline) = 0;
  virtual void wantMailFrom(int peer, TimePoint deadline) = 0;
  virtual void laneLost(int peer, int error) = 0;
  virtual void fail(const Status& cause) = 0;
  // The collective that this rank called by that number; null: not yet, or too long ago.
  virtual std::shared_ptr<Op> called(uint64_t sequence) const = 0;
  // Has the peer compare its call of that number with this rank's. `verdict`, if it is one, is what
  // the group fails with when the peer finds no difference, or says nothing.
  virtual void compareCalls(int peer, const std::shared_ptr<Op>& op, const Status& verdict) = 0;
  virtual void timedOut(int peer, const std::shared_ptr<Op>& op, const Status& verdict) = 0;
  virtual std::string peerName(int peer) const = 0;

 protected:
  ~ShareHost() = default;
};

}  // namespace ringcomm
