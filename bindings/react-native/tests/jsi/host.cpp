// What an app is to the package, without an app: React Native's JSI over WebKitGTK's JavaScriptCore, a
// queue of tasks, and the generated C++. `host BUNDLE` runs a script until it calls `exit(code)`.
//
// React Native's runtime for JavaScriptCore has neither BigInt nor buffers of C++'s. Where its source has
// no answer for a value, `cargo xtask bindings --all` has it ask `bigInt`; the rest is overridden here.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include <JavaScriptCore/JavaScript.h>
#include <ReactCommon/CallInvoker.h>
#include <jsi/jsi.h>
#include <jsi/jsilib.h>

#include "react-native-lapidary.h"

namespace facebook::jsc {
class JSCRuntime;
jsi::Value bigInt(const JSCRuntime &runtime, JSValueRef value);
JSValueRef bigInt(JSCRuntime &runtime, const jsi::Value &value);
} // namespace facebook::jsc

#define private protected
#include "JSCRuntime.cpp"
#undef private

namespace facebook::jsc {

/// A BigInt is kept as the runtime keeps a symbol: as a value that is protected from collection.
class FullRuntime final : public JSCRuntime {
public:
  jsi::BigInt ofRef(JSValueRef value) const {
    return make<jsi::BigInt>(makeSymbolValue(value));
  }

  JSValueRef toRef(const jsi::BigInt &value) {
    return symbolRef(make<jsi::Symbol>(cloneSymbol(getPointerValue(value))));
  }

protected:
  PointerValue *cloneBigInt(const PointerValue *value) override {
    return cloneSymbol(value);
  }

  jsi::BigInt createBigIntFromInt64(int64_t value) override {
    return ofRef(checked(JSBigIntCreateWithInt64(getContext(), value, &thrown_)));
  }

  jsi::BigInt createBigIntFromUint64(uint64_t value) override {
    return ofRef(checked(JSBigIntCreateWithUInt64(getContext(), value, &thrown_)));
  }

  bool bigintIsInt64(const jsi::BigInt &value) override {
    auto ref = toRef(value);
    auto number = JSValueToInt64(getContext(), ref, nullptr);
    return JSValueCompareInt64(getContext(), ref, number, nullptr) == kJSRelationConditionEqual;
  }

  bool bigintIsUint64(const jsi::BigInt &value) override {
    auto ref = toRef(value);
    return JSValueCompareUInt64(getContext(), ref, truncate(value), nullptr) ==
           kJSRelationConditionEqual;
  }

  uint64_t truncate(const jsi::BigInt &value) override {
    return JSValueToUInt64(getContext(), toRef(value), nullptr);
  }

  bool strictEquals(const jsi::BigInt &a, const jsi::BigInt &b) const override {
    auto self = const_cast<FullRuntime *>(this);
    return JSValueIsStrictEqual(self->getContext(), self->toRef(a), self->toRef(b));
  }
  using JSCRuntime::strictEquals;

  jsi::ArrayBuffer createArrayBuffer(std::shared_ptr<jsi::MutableBuffer> buffer) override {
    auto size = buffer->size();
    auto data = buffer->data();
    // A buffer at no address is one that was taken away.
    static uint8_t nothing;
    if (data == nullptr) data = &nothing;
    // The script's buffer holds C++'s for as long as it lives.
    auto owner = new std::shared_ptr<jsi::MutableBuffer>(std::move(buffer));
    auto release = [](void *, void *owner) {
      delete static_cast<std::shared_ptr<jsi::MutableBuffer> *>(owner);
    };
    auto object = JSObjectMakeArrayBufferWithBytesNoCopy(
        getContext(), data, size, release, owner, &thrown_);
    checked(object);
    return createObject(object).getArrayBuffer(*this);
  }

private:
  JSValueRef checked(JSValueRef value) {
    auto thrown = std::exchange(thrown_, nullptr);
    checkException(value, thrown);
    return value;
  }

  JSValueRef thrown_ = nullptr;
};

jsi::Value bigInt(const JSCRuntime &runtime, JSValueRef value) {
  auto &full = static_cast<const FullRuntime &>(runtime);
  return jsi::Value(const_cast<FullRuntime &>(full), full.ofRef(value));
}

JSValueRef bigInt(JSCRuntime &runtime, const jsi::Value &value) {
  return static_cast<FullRuntime &>(runtime).toRef(value.getBigInt(runtime));
}

} // namespace facebook::jsc

namespace {

using namespace facebook;
using Clock = std::chrono::steady_clock;

/// The tasks of the one thread that runs scripts; any thread adds some.
class Tasks final : public react::CallInvoker {
public:
  explicit Tasks(jsi::Runtime &runtime) : runtime_(runtime) {}

  void invokeAsync(react::CallFunc &&task) noexcept override {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    awake_.notify_one();
  }

  void invokeSync(react::CallFunc &&) override {
    throw std::logic_error("nothing here waits for a script");
  }

  int later(std::shared_ptr<jsi::Function> callback, double milliseconds) {
    auto at = Clock::now() + std::chrono::microseconds(int64_t(milliseconds * 1000));
    timers_.emplace(++timer_, std::pair{at, std::move(callback)});
    return timer_;
  }

  void never(int timer) { timers_.erase(timer); }

  /// Runs tasks and timers until `exit` is called.
  int run() {
    while (!code_) {
      auto first = std::min_element(timers_.begin(), timers_.end(), [](auto &a, auto &b) {
        return a.second.first < b.second.first;
      });
      react::CallFunc task;
      {
        std::unique_lock lock(mutex_);
        auto ready = [this] { return !tasks_.empty(); };
        if (first == timers_.end()) {
          awake_.wait(lock, ready);
        } else {
          awake_.wait_until(lock, first->second.first, ready);
        }
        if (ready()) {
          task = std::move(tasks_.front());
          tasks_.pop_front();
        }
      }
      if (task) {
        task(runtime_);
      } else if (first->second.first <= Clock::now()) {
        auto callback = std::move(first->second.second);
        timers_.erase(first);
        callback->call(runtime_);
      }
    }
    return *code_;
  }

  void exit(int code) { code_ = code; }

private:
  jsi::Runtime &runtime_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::deque<react::CallFunc> tasks_;
  std::map<int, std::pair<Clock::time_point, std::shared_ptr<jsi::Function>>> timers_;
  int timer_ = 0;
  std::optional<int> code_;
};

void define(jsi::Runtime &runtime, const char *name, unsigned count, jsi::HostFunctionType function) {
  auto id = jsi::PropNameID::forAscii(runtime, name);
  auto made = jsi::Function::createFromHostFunction(runtime, id, count, std::move(function));
  runtime.global().setProperty(runtime, name, made);
}

} // namespace

int main(int count, char **arguments) {
  std::ifstream file(count > 1 ? arguments[1] : "");
  std::stringstream script;
  if (!(script << file.rdbuf())) {
    std::cerr << "which script?\n";
    return 2;
  }
  jsc::FullRuntime runtime;
  auto tasks = std::make_shared<Tasks>(runtime);
  using Arguments = const jsi::Value *;
  define(runtime, "print", 1, [](jsi::Runtime &rt, const jsi::Value &, Arguments a, size_t) {
    std::cout << a[0].toString(rt).utf8(rt) << std::endl;
    return jsi::Value();
  });
  define(runtime, "exit", 1, [tasks](jsi::Runtime &, const jsi::Value &, Arguments a, size_t) {
    tasks->exit(int(a[0].asNumber()));
    return jsi::Value();
  });
  define(runtime, "setTimeout", 2, [tasks](jsi::Runtime &rt, const jsi::Value &, Arguments a, size_t n) {
    auto callback = std::make_shared<jsi::Function>(a[0].asObject(rt).asFunction(rt));
    return jsi::Value(tasks->later(callback, n > 1 && a[1].isNumber() ? a[1].getNumber() : 0));
  });
  define(runtime, "clearTimeout", 1, [tasks](jsi::Runtime &, const jsi::Value &, Arguments a, size_t) {
    if (a[0].isNumber()) tasks->never(int(a[0].getNumber()));
    return jsi::Value();
  });
  lapidary::installRustCrate(runtime, tasks);
  int code = 1;
  try {
    runtime.evaluateJavaScript(std::make_shared<jsi::StringBuffer>(script.str()), arguments[1]);
    code = tasks->run();
  } catch (const std::exception &e) {
    std::cerr << e.what() << std::endl;
  }
  // Engines have threads, and what they hold goes with the process.
  std::cout.flush();
  std::_Exit(code);
}
