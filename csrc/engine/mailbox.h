#pragma once

#include "engine/mail_lane.h"
#include "engine/match_queues.h"
#include "engine/share_host.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ringcomm {

// A group's point-to-point messages: matches sends with receives by rank and tag, first come first
// served, and lets every message advance on its own. Messages to itself are copied. On its loop.
class Mailbox final : public MailObserver {
 public:
  struct Setup {
    ShareHost* host = nullptr;
    Loop* loop = nullptr;
    int rank = 0;
    int world = 1;
    uint32_t sliceBytes = 0;
  };

  explicit Mailbox(const Setup& setup);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void start(const std::shared_ptr<Op>& op);
  void attach(int peer, UniqueFd fd);
  // There will be no lane to the peer. The end for who needs that very peer; who receives from
  // anybody goes on while there is somebody left.
  void unreachable(int peer, const Status& why);
  // Ends everything; nothing is started after it, and the loop not used any more.
  void abandon(const Status& cause);

 private:
  // A message that has come, or was announced, and that nobody has received yet; or whose bytes
  // are still on their way to where they were found a place.
  struct Letter {
    int from = 0;
    MailHead head;
    bool announced = false;              // its bytes are still with the sender
    bool whole = false;                  // all bytes are here
    std::unique_ptr<std::byte[]> bytes;  // an unexpected eager message
    std::shared_ptr<Op> selfSend;        // from this rank: the bytes are the sender's
    std::shared_ptr<Op> receiver;        // once matched
  };
  struct Pending {
    std::shared_ptr<Op> op = nullptr;
    Loop::TimerId timer;
  };

  std::byte* arriving(MailLane& lane, const MailHead& head, bool announced) noexcept override;
  void arrived(MailLane& lane, uint64_t id) noexcept override;
  void sent(const std::shared_ptr<Op>& op) noexcept override { complete(op); }
  void mailLost(MailLane& lane, int error) noexcept override;
  void mailViolated(MailLane& lane, const Status& why) noexcept override;

  MailLane& laneTo(int peer, TimePoint deadline);
  void startReceive(const std::shared_ptr<Op>& op);
  Letter& addLetter(int from, const MailHead& head);
  std::shared_ptr<Op> receiverOf(Letter& letter);
  bool match(Letter& letter, const std::shared_ptr<Op>& op);
  void deliver(Letter& letter);
  bool needed(int peer) const;
  bool nobodyLeft() const;
  void failWithout(int peer);
  void complete(const std::shared_ptr<Op>& op);
  void timeOut(const std::shared_ptr<Op>& op);

  const Setup setup_;
  Loop& loop_;
  std::vector<std::unique_ptr<MailLane>> lanes_;    // by peer; null until first used
  std::vector<Status> gone_;                        // by peer; ok while it may be reached
  std::unordered_map<const Op*, Pending> pending_;  // all that is not complete
  std::unordered_map<uint64_t, Letter> letters_;    // by sender and number
  MatchQueues<std::shared_ptr<Op>> receives_;       // not matched, by peer or kAnyPeer
  MatchQueues<Letter*> unmatched_;                  // by sender
  std::vector<int> everybody_;                      // all ranks
  uint64_t selfSends_ = 0;
  Status failure_;
};

}  // namespace ringcomm
