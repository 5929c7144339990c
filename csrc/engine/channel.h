#pragma once

#include "engine/run.h"
#include "net/frame.h"
#include "net/lane.h"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

namespace ringcomm {

class Channel;

// What a channel reports to, on the same loop.
class ChannelObserver {
 public:
  // A step of the run moved on. May end the run: the channel does not look at it afterwards.
  virtual void progressed(Run& run) noexcept = 0;
  // The lane ended or broke while it was needed, with LaneIo's error.
  virtual void laneLost(Channel& channel, int error) noexcept = 0;
  // The peer sent something that this rank's plan does not have next: a frame that makes no sense,
  // or one of another call than the run's, which is `mine` in the words of a frame.
  virtual void violated(Channel& channel, const Status& why) noexcept = 0;
  virtual void mismatched(Channel& channel, Run& run, const FrameHeader& theirs,
                          const FrameHeader& mine) noexcept = 0;
  // Something may have come that nobody waits for yet.
  virtual void stirred() noexcept = 0;

 protected:
  ~ChannelObserver() = default;
};

// Everything one share exchanges with one peer: two queues of transfers, which go through the lane
// one after another in the order of operations, each direction on its own. A message is cut into
// frames of at most one slice; the header of a frame is written when its first payload byte exists,
// and its payload as it comes into being. On the share's loop.
class Channel final : public LaneOwner, public Runnable {
 public:
  Channel(Loop& loop, ChannelObserver& observer, int peer, uint32_t sliceBytes);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int peer() const noexcept { return peer_; }
  bool connected() const noexcept { return lane_ != nullptr; }
  bool idle() const noexcept { return sends_.queue.empty() && receives_.queue.empty(); }

  // The socket of a proven connection becomes the lane.
  Status attach(UniqueFd fd);

  // Queues a send or receive step of the run behind those queued before.
  void enqueue(Run& run, uint32_t step);

  // Looks again at what can be moved, soon.
  void nudge() noexcept;

  // The header of a frame that has come while nothing is to be received; the frame stays where it
  // is. Of what makes no sense the observer is told.
  std::optional<FrameHeader> unexpected() noexcept;

  // Forgets all transfers, and the lane.
  void discard() noexcept;

 private:
  struct Transfer {
    Run* run;
    uint32_t step;
    uint32_t message;  // number within the operation, between these two ranks, in this direction
  };
  // One direction: what is queued, and where its first transfer stands.
  struct Direction {
    std::deque<Transfer> queue;
    std::array<std::byte, kFrameHeaderBytes> header{};
    size_t headerDone = 0;
    bool inFrame = false;
    uint32_t frameLeft = 0;  // payload bytes of the frame still to move
  };

  void run() noexcept override;
  void onLaneReady() noexcept override;

  bool pumpSends() noexcept;
  bool pumpReceives() noexcept;
  bool beginSendFrame(const Transfer& transfer) noexcept;
  bool receiveSome(Transfer& transfer) noexcept;
  bool headerFits(const Transfer& transfer) noexcept;
  void takePayload(const Transfer& transfer, uint64_t bytes) noexcept;
  bool endFrame(Direction& direction) noexcept;
  void fail(int error) noexcept;

  Loop& loop_;
  ChannelObserver& observer_;
  const int peer_;
  const uint32_t sliceBytes_;
  std::unique_ptr<Lane> lane_;
  // The lane failed, or brought what nobody expects: nothing more is moved, whatever comes.
  bool broken_ = false;
  Direction sends_;
  Direction receives_;
  // The start of an element whose rest has not arrived yet.
  std::array<std::byte, 16> carry_{};
  size_t carryBytes_ = 0;
};

}  // namespace ringcomm
