#include "torch/backend.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>

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

// What the base class's binding has only from torch 2.14 on, and what is ours.
void bindBackend(py::module_& module, const py::object& base) {
  py::class_<RingBackend, c10::intrusive_ptr<RingBackend>>(module, "RingBackend", base)
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       OptionsPtr options, const std::string& groupName, const std::string& routeTo,
                       int localRanks) {
             const py::gil_scoped_release unlocked;
             return c10::make_intrusive<RingBackend>(
                 store, rank, size, std::move(options),
                 RingBackend::Place{groupName, routeTo, localRanks});
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
  module.def("isas", &isas, "instruction sets with kernels that this machine can run");
}
