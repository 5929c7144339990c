#pragma once

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "io/loop.h"
#include "net/handshake.h"
#include "net/socket.h"

#include <functional>
#include <list>
#include <memory>

namespace ringcomm {

// The process's one listening port: accepts, drives the acceptor's side of the handshake, and hands
// on what has proven that it belongs here. Strangers cost a bounded number of descriptors for a
// bounded time, get no answer, and are logged at a bounded rate; when they are too many, those that
// have not named a group of ours go first. Made and destroyed before its loop runs others' tasks or
// on that loop; everything happens on the loop.
class Listener final : private EventHandler {
 public:
  // Gives the socket of a proven connection and what it is for.
  using Accepted = std::function<void(UniqueFd, const Hello&)>;

  Listener(Loop& loop, UniqueFd fd, SocketOptions options, const Logger& logger);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // `admission` has the last word about a proven hello; what it takes goes to `accepted` next.
  Status start(GroupLookup lookup, Admission admission, Accepted accepted);

  // At most this many connections are in their handshake.
  static constexpr size_t kMaxPending = 128;
  static constexpr std::chrono::seconds kHandshakeTime{5};

 private:
  class Pending;

  void onEvents(uint32_t events) noexcept override;
  void admit(UniqueFd fd);
  void makeRoom();
  void acceptAgain(Duration delay);
  void finish(Pending* pending);
  void drop(Pending* pending, const Status& why);
  void remove(Pending* pending);
  void report(const std::string& text);

  Loop& loop_;
  UniqueFd fd_;
  SocketOptions options_;
  const Logger& logger_;
  GroupLookup lookup_;
  Admission admission_;
  Accepted accepted_;
  std::list<std::unique_ptr<Pending>> pending_;
  Loop::TimerId retry_{};
  bool watching_ = false;
  TimePoint reportWindow_{};
  int reportsInWindow_ = 0;
  int reportsDropped_ = 0;
};

}  // namespace ringcomm
