#pragma once

#include "base/fd.h"
#include "base/status.h"
#include "io/loop.h"
#include "net/frame.h"

#include <functional>
#include <string>

namespace ringcomm {

// The control connection between two ranks of a group: small messages that must not wait behind
// data. Its order is what verdicts rest on: whatever the peer had to say comes before its end. On
// its loop; the callbacks come from there. `message` must not destroy the link, `ended` may.
class ControlLink final : private EventHandler {
 public:
  struct Callbacks {
    std::function<void(const ControlMessage&)> message;
    std::function<void(const Status& why)> ended;  // once; nothing comes after
  };

  ControlLink(Loop& loop, UniqueFd fd, Callbacks callbacks);
  ~ControlLink();
  ControlLink(const ControlLink&) = delete;
  ControlLink& operator=(const ControlLink&) = delete;

  Status start();
  void send(const ControlMessage& message);

  // Reads what has arrived, now: before a verdict from the end of a data lane.
  void readNow() { onEvents(0); }

 private:
  void onEvents(uint32_t events) noexcept override;
  Status flush();
  Status receive();

  Loop& loop_;
  UniqueFd fd_;
  Callbacks callbacks_;
  ControlParser parser_;
  std::string unsent_;
  bool ended_ = false;
};

}  // namespace ringcomm
