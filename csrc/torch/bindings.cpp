#include "torch/backend.h"
#include "torch/recording.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace {

using ringcomm::RingBackend;
using RingOptions = RingBackend::RingOptions;
using OptionsPtr = c10::intrusive_ptr<RingOptions>;

void setOption(RingOptions& options, const std::string& name, const py::object& value) {
  const ringcomm::Status set =
      ringcomm::setOption(options.values, name, py::str(value).cast<std::string>());
  if (!set.ok()) {
    throw py::value_error("ringcomm: " + set.message());
  }
  options.given[name] = py::str(value).cast<std::string>();
}

// What `other` was given replaces what is here, and is all that counts as given.
void adoptGiven(RingOptions& options, const RingOptions& other) {
  options.given = other.given;
  for (const auto& [name, value] : options.given) {
    TORCH_INTERNAL_ASSERT(ringcomm::setOption(options.values, name, value).ok());
  }
}

OptionsPtr makeOptions(std::chrono::milliseconds timeout, const py::kwargs& values) {
  auto options = c10::make_intrusive<RingOptions>(timeout);
  for (const auto& [name, value] : values) {
    setOption(*options, name.cast<std::string>(), py::reinterpret_borrow<py::object>(value));
  }
  return options;
}

std::vector<std::tuple<std::string, std::string, std::string, std::string>> optionTable() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> rows;
  for (const ringcomm::OptionRow& row : ringcomm::optionTable()) {
    rows.emplace_back(row.name, std::string(1, row.scope), row.preset, row.doc);
  }
  return rows;
}

std::vector<std::tuple<std::string, uint64_t, uint64_t, std::string>> algorithmTable(
    int world, const RingOptions& options) {
  const ringcomm::Result<ringcomm::Tuning> tuning = ringcomm::tuningOf(options.values);
  if (!tuning.ok()) {
    throw py::value_error("ringcomm: " + tuning.status().message());
  }
  std::vector<std::tuple<std::string, uint64_t, uint64_t, std::string>> rows;
  for (const auto& row : ringcomm::algorithmTable(world, tuning.value())) {
    rows.emplace_back(ringcomm::collectiveName(row.kind), row.first, row.last, row.algorithm);
  }
  return rows;
}

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const ringcomm::Isa isa : ringcomm::supportedIsas()) {
    names.emplace_back(ringcomm::isaName(isa));
  }
  return names;
}

const char* stateName(ringcomm::FlightRecorder::State state) {
  constexpr const char* kNames[] = {"started", "completed", "failed"};
  return kNames[static_cast<size_t>(state)];
}

void setShapes(py::dict& dict, const std::string& which,
               const std::vector<ringcomm::FlightRecorder::Shape>& shapes) {
  py::list sizes;
  py::list dtypes;
  for (const auto& shape : shapes) {
    sizes.append(py::cast(shape.sizes));
    dtypes.append(shape.dtype);
  }
  dict[py::str(which + "_sizes")] = sizes;
  dict[py::str(which + "_dtypes")] = dtypes;
}

py::dict recordedDict(const ringcomm::FlightRecorder::Entry& entry) {
  const ringcomm::FlightRecorder::Call& call = entry.call;
  py::dict dict;
  dict["record_id"] = entry.id;
  dict["process_group"] = py::make_tuple(call.group->name, call.group->description);
  dict["ranks"] = call.group->ranks;
  dict["profiling_name"] = "ringcomm:" + call.name;
  dict["is_p2p"] = call.p2p;
  dict["collective_seq_id"] = call.collectives;
  dict["p2p_seq_id"] = call.transfers;
  dict["op_id"] = call.calls;
  setShapes(dict, "input", call.inputs);
  setShapes(dict, "output", call.outputs);
  dict["timeout_ms"] = call.timeout.count();
  dict["time_created_ns"] = entry.createdNanos;
  dict["time_ended_ns"] = entry.endedNanos;
  dict["duration_ms"] = entry.millis;
  dict["state"] = stateName(entry.state);
  dict["error"] = entry.error;
  dict["thread_name"] = entry.thread;
  return dict;
}

using Frames = std::vector<torch::unwind::Frame>;

// The frames of each entry, innermost first; none where no stack was kept.
std::vector<Frames> framesOf(const std::vector<ringcomm::FlightRecorder::Entry>& entries) {
  std::vector<torch::CapturedTraceback*> stacks;
  for (const auto& entry : entries) {
    if (entry.call.stack != nullptr) {
      stacks.push_back(static_cast<torch::CapturedTraceback*>(entry.call.stack.get()));
    }
  }
  std::vector<Frames> frames(entries.size());
  if (stacks.empty()) {
    return frames;
  }
  const torch::SymbolizedTracebacks symbols = torch::symbolize(stacks);
  auto indices = symbols.tracebacks.begin();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].call.stack != nullptr) {
      for (const uint64_t index : *indices++) {
        frames[i].push_back(symbols.all_frames[index]);
      }
    }
  }
  return frames;
}

py::list recordedCalls(bool stacks) {
  py::list dicts;
  ringcomm::CallRecorder* const recorder = ringcomm::callRecorder();
  if (recorder == nullptr) {
    return dicts;
  }
  std::vector<ringcomm::FlightRecorder::Entry> entries;
  std::vector<Frames> frames;
  {
    const py::gil_scoped_release unlocked;
    entries = recorder->calls.entries();
    frames.resize(entries.size());
    if (stacks) {
      frames = framesOf(entries);
    }
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    py::dict dict = recordedDict(entries[i]);
    py::list list;
    for (const auto& frame : frames[i]) {
      list.append(py::dict(py::arg("name") = frame.funcname, py::arg("filename") = frame.filename,
                           py::arg("line") = frame.lineno));
    }
    dict["frames"] = list;
    dicts.append(dict);
  }
  return dicts;
}

// What the base class's binding has only from torch 2.14 on, and what is ours.
void bindBackend(py::module_& module, const py::object& base) {
  py::class_<RingBackend, c10::intrusive_ptr<RingBackend>>(module, "RingBackend", base)
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       OptionsPtr options, const std::string& groupName, const std::string& routeTo,
                       int localRanks) {
             c10::intrusive_ptr<RingBackend> made;
             {
               const py::gil_scoped_release unlocked;
               made = c10::make_intrusive<RingBackend>(
                   store, rank, size, std::move(options),
                   RingBackend::Place{groupName, routeTo, localRanks});
             }
             if (const std::string& warning = made->lateOptionsWarning();
                 !warning.empty() &&
                 PyErr_WarnEx(PyExc_UserWarning, ("ringcomm: " + warning).c_str(), 2) != 0) {
               throw py::error_already_set();
             }
             return made;
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::arg("group_name"), py::arg("route_to") = "", py::arg("local_ranks") = 1)
      .def_property_readonly("options", &RingBackend::getBackendOptions)
      .def("get_error", &RingBackend::getError)
      // Called on ranks that are not part of a split; making the others' group needs nothing of us.
      .def("perform_nocolor_split", [](const RingBackend&, const py::object&) {})
      .def("_set_default_timeout", &RingBackend::setTimeout, py::arg("timeout"));
}

void bindOptions(py::module_& module, const py::object& base) {
  py::class_<RingOptions, OptionsPtr>(module, "Options", base)
      .def(py::init([](std::chrono::milliseconds timeout, const py::kwargs& values) {
             return makeOptions(timeout, values);
           }),
           py::arg("timeout") = kBackendDefaultTimeout)
      .def("set", &setOption, py::arg("name"), py::arg("value"))
      .def("adopt", &adoptGiven, py::arg("other"))
      .def_readonly("given", &RingOptions::given)
      .def("__deepcopy__", [](const RingOptions& self, const py::dict&) {
        return c10::make_intrusive<RingOptions>(self);
      });
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  bindOptions(module, backend.attr("Options"));
  bindBackend(module, backend);
  module.def("prepare_exit", &RingBackend::prepareExit, py::call_guard<py::gil_scoped_release>(),
             "waits for callbacks that are running; later ones are not run");
  module.def("option_table", &optionTable, "(name, scope, default, doc) of every option");
  module.def("algorithm_table", &algorithmTable, py::arg("world"), py::arg("options"),
             "(collective, first, last, algorithm): which sizes in bytes take which algorithm");
  module.def("recorded_calls", &recordedCalls, py::arg("stacks") = true,
             "the last calls, oldest first, as ringcomm.flight_recorder explains them");
  module.def("isas", &isas, "instruction sets with kernels that this machine can run");
}
