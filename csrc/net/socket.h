#pragma once

#include "base/fd.h"
#include "base/status.h"
#include "net/address.h"

#include <cstdint>
#include <string>

namespace ringcomm {

struct SocketOptions {
  // Send and receive buffer of a data connection; 0 leaves both to the kernel's auto-tuning.
  int bufferBytes = 0;
  // TCP congestion control of data connections; empty: the system's default.
  std::string congestion;
};

// Listens on every address of this host, IPv6 and IPv4; port 0 picks a free one. Accepted sockets
// inherit the buffer sizes.
Result<UniqueFd> listenOnAll(uint16_t port, const SocketOptions& options);

// Starts a connect that does not block; the socket is writable when it has ended either way.
Result<UniqueFd> startConnect(const Address& to, const SocketOptions& options);

// How a started connect ended; 0 or an errno.
int connectError(int fd);

// Options of every connection of ours, dialed or accepted.
Status prepareConnection(int fd, const SocketOptions& options);

// Whether both ends of a connection are on this host.
bool staysOnHost(int fd);

// Of a connection or listener; IPv4 as IPv4 also on a socket that serves both families.
Address localAddress(int fd);
Address peerAddress(int fd);

}  // namespace ringcomm
