#pragma once

#include "base/log.h"
#include "engine/op.h"
#include "io/loop.h"
#include "net/candidates.h"
#include "net/control_link.h"
#include "net/dialer.h"
#include "net/handshake.h"

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace ringcomm {

// What the peers of a group report. Called on the control loop.
class PeersObserver {
 public:
  virtual void laneConnected(int peer, int lane, UniqueFd fd) = 0;
  virtual void peersFailed(const Status& cause) = 0;
  virtual bool hasCalled(uint64_t sequence) const = 0;
  virtual void peerLeft(int peer) = 0;
  // There will be no lane for messages with the peer.
  virtual void mailUnreachable(int peer, const Status& why) = 0;
  // The peer is stuck in a call, and says which.
  virtual void heardCall(int peer, const ControlMessage& theirs) = 0;

 protected:
  ~PeersObserver() = default;
};

// A group's connections: makes them when they are first wanted (the lower rank dials, the higher is
// dialed), hands the data lanes out, and keeps a control link to each connected peer. Verdicts
// about peers are made here, and only from the control link: it says why a peer ends before it
// ends. On the control loop.
class Peers {
 public:
  struct Setup {
    Loop* loop = nullptr;
    PeersObserver* observer = nullptr;
    const Logger* logger = nullptr;
    SocketOptions sockets;
    GroupId group{};
    uint32_t generation = 0;
    int rank = 0;
    int world = 1;
    int lanes = 1;
    std::string secret;
    // A connection that is not made after this long is worth a warning.
    Duration slow = std::chrono::seconds(10);
  };

  explicit Peers(Setup setup);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Where everybody is and how to call them ("rank 2 (host)"), by rank; before any connect().
  void introduce(std::vector<Candidates> candidates, std::vector<std::string> names);

  // Sees to it that there are lanes for collectives, now or when the peer comes, by the deadline.
  void connect(int peer, TimePoint deadline);
  // The same for the lane of point-to-point messages; there the peer is asked to come.
  void connectMail(int peer, TimePoint deadline);
  // The number of that lane, behind those for collectives.
  int mailLane() const noexcept { return setup_.lanes; }

  // Whether a dialer with this hello is expected; what it gets to prove.
  GroupKey admit(const Hello& hello) const;
  void accepted(UniqueFd fd, const Hello& hello);

  // A lane to the peer ended while it was needed.
  void laneLost(int peer, int error);

  // Tells the peer what this rank has called, for it to compare. `verdict`, if it is one: the end
  // of the group unless the peer gives another one soon.
  void compare(int peer, const std::shared_ptr<Op>& op, const ControlMessage& note,
               const Status& verdict);

  // An operation ran out of time waiting for the peer: finds out whether the peer is to blame, or
  // is a victim itself and will hear or give the verdict. At the latest in about a second,
  // `verdict`; at once, and with where it was looked for, when the peer is not connected or the
  // operation is a message for which there is no lane.
  void suspect(int peer, const std::shared_ptr<Op>& op, const Status& verdict);

  // Tells all connected peers that the group has failed, and why.
  void announce(const Status& cause);

  // Takes leave of all peers; nothing is accepted or dialed after it.
  void close();

 private:
  struct Peer {
    bool wanted = false;
    bool mailWanted = false;
    bool controlDialed = false;
    bool laneKnock = false;  // the peer has asked to be dialed, for collectives
    bool mailKnock = false;  // the same for messages
    Loop::TimerId knockTimer{};
    Loop::TimerId slowTimer{};
    bool slowWatched = false;  // the timer runs, or has led to a warning
    bool left = false;         // said goodbye
    bool laneEnded = false;    // while it was needed
    bool controlSeen = false;
    std::vector<bool> laneSeen;
    std::unique_ptr<ControlLink> control;
    std::list<std::unique_ptr<Dialer>> dialers;
    Loop::TimerId verdictTimer{};
    Status suspicion;         // what to say when a suspect proves guilty
    std::weak_ptr<Op> about;  // unless this operation is done by then
  };

  bool mayConnect(int peer);
  void dial(int peer, ConnectionKind kind, int lane, TimePoint deadline);
  void dialControl(int peer, TimePoint deadline);
  void established(UniqueFd fd, int peer, ConnectionKind kind, int lane);
  void knockSoon(int peer, TimePoint deadline);
  void answerKnocks(int peer);
  void onMessage(int peer, const ControlMessage& message);
  void onControlEnded(int peer, const Status& why);
  void onAnswer(int peer, const ControlMessage& answer);
  void decide(int peer, const Status& verdict);
  void tell(int peer, const Status& cause);
  void decideLater(int peer, Duration delay, const Status& verdict);
  void fail(Code code, const std::string& text, int peer);
  void failLeft(int peer) { setup_.observer->peersFailed(leftStatus(peer)); }
  Status leftStatus(int peer) const;
  void dialFailed(int peer, const Status& why, bool forMail);
  void checkMail(int peer);
  void warnWhenSlow(int peer, TimePoint deadline);
  bool isComplete(int peer) const;
  std::string whyApart(int peer) const;
  static std::string whatToCheck();
  Peer& at(int peer) { return peers_[static_cast<size_t>(peer)]; }
  std::string name(int peer) const;

  const Setup setup_;
  Loop& loop_;
  std::vector<Peer> peers_;
  std::vector<Candidates> candidates_;
  std::vector<std::string> names_;
  Status failure_;  // what announce() was told
  bool failed_ = false;
  bool closed_ = false;
};

}  // namespace ringcomm
