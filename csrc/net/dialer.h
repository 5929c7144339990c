#pragma once

#include "base/clock.h"
#include "base/fd.h"
#include "io/loop.h"
#include "net/handshake.h"
#include "net/socket.h"

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace ringcomm {

// Makes one connection to a peer: tries its addresses in order, the next one a moment later while
// the first is still undecided, and keeps the first that answers and proves itself. What an address
// says before that is hearsay, since somebody else may listen there: no refusal ends the dial while
// other addresses are left. A round over all of them is repeated a few times, unless the peer has
// refused for good; the deadline ends it in any case. On its loop; `done` is called once, from the
// loop, and may destroy the dialer.
class Dialer {
 public:
  struct Target {
    std::vector<Address> addresses;  // not empty
    Hello hello;
    std::string secret;
    std::string peerName;  // "rank 2 (host b)", for messages
  };
  using Done = std::function<void(Result<UniqueFd>)>;

  Dialer(Loop& loop, SocketOptions options, Target target, TimePoint deadline, Done done);
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  void start() { startRound(); }

  // Every address and what has come of it so far: "10.0.0.2:29600: no answer; 10.1.0.2:29600: ...".
  std::string report() const;

 private:
  class Attempt;

  void startNext();
  void startRound();
  void endRound();
  const Attempt* attemptAt(const Address& address) const;
  void onConnected();
  void onFinished(Attempt* attempt);
  void onFailed(Attempt* attempt, const Status& why);
  void remove(Attempt* attempt);
  void noteFailure(const Address& address, const Status& why);
  void noteRefusal(Refusal refusal, const Status& why);
  void finish(Result<UniqueFd> result);
  void setTimer(TimePoint when, Task task);

  Loop& loop_;
  SocketOptions options_;
  Target target_;
  TimePoint deadline_;
  Done done_;
  std::list<std::unique_ptr<Attempt>> attempts_;
  size_t nextAddress_ = 0;
  int roundsLeft_;
  Duration backoff_;
  std::vector<std::string> outcomes_;  // by address: how the last attempt ended
  // Of this round: whether an attempt has failed, what the failures amount to, and whether trying
  // again is in vain.
  bool roundFailed_ = false;
  Code code_ = Code::kPeerLost;
  bool refusedForGood_ = false;
  Loop::TimerId timer_{};
};

}  // namespace ringcomm
