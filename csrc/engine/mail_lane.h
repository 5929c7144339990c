#pragma once

#include "engine/op.h"
#include "net/frame.h"
#include "net/lane.h"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>

namespace ringcomm {

// What a frame on the point-to-point lane is; in FrameHeader::collective, where collectives have
// their numbers.
enum class MailKind : uint8_t {
  kEager = 0x80,     // a whole message: id, tag, type, and its bytes
  kAnnounce = 0x81,  // a large message waits to be asked for: id, tag, type
  kRequest = 0x82,   // the receiver has room for message `id`: send it
  kSlice = 0x83,     // a part of a message that was asked for
  kCredit = 0x84,    // `count` bytes of unexpected messages have been taken
};

// How a message is called by its sender, on the wire and to its receiver.
struct MailHead {
  uint64_t id = 0;
  int tag = 0;
  DType dtype = DType::kByte;
  uint64_t count = 0;

  uint64_t bytes() const noexcept { return count * dtypeSize(dtype); }
};

class MailLane;

// Who decides where messages go; on the same loop.
class MailObserver {
 public:
  // A message begins. Gives where its bytes go, or nullptr when it is only announced.
  virtual std::byte* arriving(MailLane& lane, const MailHead& head, bool announced) noexcept = 0;
  // All bytes of a message are where arriving() or request() said.
  virtual void arrived(MailLane& lane, uint64_t id) noexcept = 0;
  virtual void sent(const std::shared_ptr<Op>& op) noexcept = 0;
  virtual void mailLost(MailLane& lane, int error) noexcept = 0;
  virtual void mailViolated(MailLane& lane, const Status& why) noexcept = 0;

 protected:
  ~MailObserver() = default;
};

// The point-to-point traffic with one peer, over a lane of its own. Small messages are sent at
// once, up to a credit that bounds what the peer must keep unasked; others are announced, and sent
// when asked for, in slices that take turns, so that no message waits for another to be received.
// On its loop.
class MailLane final : public LaneOwner, public Runnable {
 public:
  MailLane(Loop& loop, MailObserver& observer, int peer, uint32_t sliceBytes);
  ~MailLane();
  MailLane(const MailLane&) = delete;
  MailLane& operator=(const MailLane&) = delete;

  int peer() const noexcept { return peer_; }
  bool connected() const noexcept { return lane_ != nullptr; }
  Status attach(UniqueFd fd);

  void send(const std::shared_ptr<Op>& op);
  // Asks for an announced message, to be put at `to`.
  void request(const MailHead& head, std::byte* to);
  // The receiver has taken an eager message of this size.
  void giveCredit(uint64_t bytes);
  // Somebody waits for the peer again: if the lane has ended, that is told again.
  void look() noexcept { loop_.makeReady(this); }
  bool ended() const noexcept { return ended_; }

  // The largest message that is sent unasked, and how much of that may lie untaken at the peer.
  static constexpr uint64_t kEagerBytes = uint64_t{64} << 10;
  static constexpr uint64_t kCreditBytes = uint64_t{2} << 20;
  // What a message costs of it beside its bytes: what the peer keeps about it. So the number of
  // messages is bounded, too.
  static constexpr uint64_t kMessageCost = 128;

  void onLaneReady() noexcept override;

 private:
  struct Outgoing {
    FrameHeader header;
    std::shared_ptr<Op> op;  // whose bytes follow; null: none do
    bool last = false;       // with this frame the operation is sent
  };
  struct Incoming {
    std::byte* to = nullptr;
    uint64_t left = 0;
    uint64_t offset = 0;
  };

  void run() noexcept override;
  bool pumpSends() noexcept;
  bool pumpReceives() noexcept;
  bool nextFrame() noexcept;
  Status beginFrame() noexcept;
  Status beginMessage(bool announced) noexcept;
  void lost(int error) noexcept;
  void endFrame() noexcept;
  void queueFrame(MailKind kind, const MailHead& head, uint32_t length, std::shared_ptr<Op> op);

  Loop& loop_;
  MailObserver& observer_;
  const int peer_;
  const uint32_t sliceBytes_;
  std::unique_ptr<Lane> lane_;
  bool ended_ = false;

  uint64_t nextId_ = 0;
  uint64_t nextIncomingId_ = 0;
  uint64_t credit_ = kCreditBytes;
  uint64_t owedCredit_ = 0;
  uint64_t lentCredit_ = 0;     // of our credit to the peer, what it has used
  std::deque<Outgoing> queue_;  // frames in order
  std::unordered_map<uint64_t, std::shared_ptr<Op>> announced_;  // by id: not asked for yet
  struct Flow {
    uint64_t id;
    std::shared_ptr<Op> op;
    uint64_t sent = 0;
  };
  std::list<Flow> flows_;  // asked for: one slice each in turn

  // The frame being written.
  bool writing_ = false;
  Outgoing current_;
  std::array<std::byte, kFrameHeaderBytes> outHeader_{};
  size_t outHeaderDone_ = 0;
  const std::byte* outBytes_ = nullptr;
  uint32_t outLeft_ = 0;

  // The frame being read.
  std::array<std::byte, kFrameHeaderBytes> inHeader_{};
  size_t inHeaderDone_ = 0;
  FrameHeader inFrame_;
  std::byte* inBytes_ = nullptr;
  uint32_t inLeft_ = 0;
  std::unordered_map<uint64_t, Incoming> incoming_;  // by the peer's id: asked for
};

}  // namespace ringcomm
