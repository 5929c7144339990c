#pragma once

#include "base/fd.h"
#include "base/status.h"
#include "io/loop.h"

#include <cstddef>
#include <cstdint>

#include <sys/uio.h>

namespace ringcomm {

// Told that a lane can be written or read again, or has ended.
class LaneOwner {
 public:
  virtual void onLaneReady() noexcept = 0;

 protected:
  ~LaneOwner() = default;
};

// What a transfer moved. bytes == 0 without error: it would block, and the owner is told later.
struct LaneIo {
  size_t bytes = 0;
  int error = 0;  // an errno, or kLaneEnded

  bool failed() const noexcept { return error != 0; }
};

inline constexpr int kLaneEnded = -1;  // the peer closed it in order

// One ordered, reliable, duplex stream of bytes to a peer, past its handshake. Everything on the
// loop that owns it. Today a TCP connection; the abstraction is the seam for shared memory inside a
// host.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual LaneIo send(const iovec* pieces, int count) noexcept = 0;
  virtual LaneIo receive(const iovec* pieces, int count) noexcept = 0;

  // Of a message of `total` bytes, `left` are still to come, whatever this side does: there is no
  // need to be told of the first few of them.
  virtual void expect(uint64_t left, uint64_t total) noexcept = 0;

  // What has arrived, up to `bytes` of it, without taking it; how many those are. For a side that
  // expects nothing: of whatever comes later it is told.
  virtual size_t peek(std::byte* to, size_t bytes) noexcept = 0;
};

class TcpLane final : public Lane, private EventHandler {
 public:
  // Watches the socket at once; the owner must outlive the lane.
  TcpLane(Loop& loop, UniqueFd fd, LaneOwner& owner);
  ~TcpLane() override;
  TcpLane(const TcpLane&) = delete;
  TcpLane& operator=(const TcpLane&) = delete;

  Status watchStatus() const { return watchStatus_; }
  LaneIo send(const iovec* pieces, int count) noexcept override;
  LaneIo receive(const iovec* pieces, int count) noexcept override;

  // Saves a wake-up a packet where the wire is slower than the machine.
  void expect(uint64_t left, uint64_t total) noexcept override;
  size_t peek(std::byte* to, size_t bytes) noexcept override;

 private:
  void onEvents(uint32_t events) noexcept override;

  Loop& loop_;
  UniqueFd fd_;
  LaneOwner& owner_;
  const bool withinHost_;
  Status watchStatus_;
  int lowWater_ = 1;
  bool readable_ = true;
  bool writable_ = true;
  bool ending_ = false;  // the peer's FIN or an error is in the queue, behind what was sent
};

}  // namespace ringcomm
