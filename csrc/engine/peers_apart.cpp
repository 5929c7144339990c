#include "engine/peers.h"

#include <algorithm>

// What Peers says about a connection that does not come about.
namespace ringcomm {

namespace {

std::string secondsText(Duration time) {
  const auto tenths = std::chrono::round<std::chrono::duration<int64_t, std::deci>>(time).count();
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) +
         " s";
}

}  // namespace

std::string Peers::whatToCheck() {
  return "Check that no firewall drops what is sent to these ports (RINGCOMM_PORT fixes a rank's "
         "port), and that the addresses belong to a network that joins the two hosts "
         "(RINGCOMM_INTERFACES chooses which a rank offers)";
}

void Peers::warnWhenSlow(int peer, TimePoint deadline) {
  Peer& state = at(peer);
  const TimePoint when = Clock::now() + setup_.slow;
  if (state.slowWatched || when >= deadline) {
    return;
  }
  state.slowWatched = true;
  state.slowTimer = loop_.startTimer(when, [this, peer, deadline] {
    at(peer).slowWatched = !isComplete(peer) && !at(peer).left;
    if (at(peer).slowWatched) {
      setup_.logger->warning("still not connected with " + name(peer) + " after " +
                             secondsText(setup_.slow) + ": " + whyApart(peer) +
                             ". It goes on trying for up to another " +
                             secondsText(deadline - Clock::now()) + ". " + whatToCheck());
    }
  });
}

// Whether all connections with the peer that this rank wants are there.
bool Peers::isComplete(int peer) const {
  const Peer& state = peers_[static_cast<size_t>(peer)];
  const auto mail = state.laneSeen.begin() + mailLane();
  const bool lanes = std::all_of(state.laneSeen.begin(), mail, [](bool seen) { return seen; });
  return (!state.wanted || (state.controlSeen && lanes)) && (!state.mailWanted || *mail);
}

// What is known about a connection that is missing, with the addresses and ports to look at.
std::string Peers::whyApart(int peer) const {
  const Peer& state = peers_[static_cast<size_t>(peer)];
  const std::string tried = state.dialers.empty() || state.dialers.front() == nullptr
                                ? ""
                                : state.dialers.front()->report();
  if (peer > setup_.rank) {
    return tried.empty() ? "it was not reached" : "tried " + tried;
  }
  std::string offered;
  for (const Candidate& candidate : candidates_[static_cast<size_t>(setup_.rank)].addresses) {
    offered += (offered.empty() ? "" : ", ") + candidate.address.toString();
  }
  return "no connection from it has arrived here (" + name(setup_.rank) + ", listening at " +
         offered + ")" +
         (tried.empty() ? ", although it answers when it is called"
                        : ", nor does it answer: tried " + tried);
}

}  // namespace ringcomm
