#pragma once

#include "base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace ringcomm {

// Every knob, once. Scope: P is the process's (its first group decides), L this rank's, G the
// group's: rank 0's value holds for all ranks, so that they cannot disagree about the protocol.
//   number: X(scope, field, "name", default, least, greatest, "what it does")
//   text:   Y(scope, field, "name", "default", "what it does")
// The environment variable of an option is RINGCOMM_ and its name in capitals.
#define RC_OPTIONS(X, Y)                                                                           \
  X(P, progressThreads, "progress_threads", 0, 0, 64,                                              \
    "threads that move data, shared by all groups; 0: a quarter of the usable cores a rank")       \
  X(P, port, "port", 0, 0, 65535, "TCP port to listen on; 0: any free one")                        \
  Y(P, interfaces, "interfaces", "",                                                               \
    "where peers may reach this rank: interfaces or subnets, comma separated (eth0,10.1.0.0/16)")  \
  X(P, socketBufferBytes, "socket_buffer_bytes", 4194304, 0, 1073741824,                           \
    "send and receive buffer of each data connection; 0: the kernel's auto-tuning")                \
  Y(P, congestion, "congestion", "",                                                               \
    "TCP congestion control; empty: the system's, and reno within a host")                         \
  Y(P, isa, "isa", "auto", "instruction set of the kernels: auto, scalar, avx2, avx512, neon")     \
  Y(P, logLevel, "log_level", "warning", "debug, info, warning or error")                          \
  X(L, spinMicros, "spin_micros", 50, 0, 1000000,                                                  \
    "how long a waiter polls before it sleeps, where ranks do not outnumber cores")                \
  Y(L, secret, "secret", "",                                                                       \
    "what proves that a connection is of this job; empty: a random one, agreed through the store") \
  X(G, lanes, "lanes", 1, 1, 64, "connections to each neighbour that large operations share")      \
  X(G, sliceBytes, "slice_bytes", 262144, 4096, 1048576, "bytes moved at a time")                  \
  Y(G, algorithms, "algorithms", "",                                                               \
    "algorithms to use whatever the size: all_reduce=ring,broadcast=tree; bench lists them")       \
  X(G, directBytes, "direct_bytes", 65536, 0, 1099511627776,                                       \
    "all_reduce goes directly to everybody while a rank sends no more than this in all")           \
  X(G, scatterGatherBytes, "scatter_gather_bytes", 131072, 0, 1099511627776,                       \
    "largest all_reduce done in two exchanges; raise it where the delay is long")

struct Options {
#define RC_NUMBER(scope, field, name, preset, least, greatest, doc) int64_t field = preset;
#define RC_TEXT(scope, field, name, preset, doc) std::string field = preset;
  RC_OPTIONS(RC_NUMBER, RC_TEXT)
#undef RC_NUMBER
#undef RC_TEXT
};

struct OptionRow {
  const char* name;
  char scope;  // 'P', 'L' or 'G'
  std::string preset;
  const char* doc;
};

// One row an option, for help texts and for tests.
std::vector<OptionRow> optionTable();

// Sets one option by name; kInvalidArgument names the option, the value and what is allowed.
Status setOption(Options& options, const std::string& name, const std::string& value);

// What rank 0 tells the others, and how they adopt it.
std::string encodeGroupOptions(const Options& options);
Status adoptGroupOptions(Options& options, const std::string& encoded);

}  // namespace ringcomm
