"""Calls of the library that take long run on a thread of their own, so that Ctrl-C reaches Python."""
import queue
import threading

from ._library import ErrorText, check

_END = object()


class Job:
    """One call. `function(error, job)` returns its status and may give values to `put`; a callback of it
    ends the call where it is `stopped`.

    Ctrl-C may raise anywhere in the main thread: nothing here takes a lock that Python code holds, such as
    those of Queue and Event, which would stay locked."""

    def __init__(self, function):
        self.error, self.status, self.stopped = ErrorText(), 0, False
        self._values, self._function, self._raised = queue.SimpleQueue(), function, None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self.status = self._function(self.error, self)
        except BaseException as e:  # of a caller's callback: raised where the result is asked for
            self._raised = e
        self._values.put(_END)

    def put(self, value):
        self._values.put(value)

    def failed(self, e):
        """A callback has raised e: the call ends, and its caller sees it."""
        self._raised = e
        self.stopped = True

    def stop(self):
        """End the call and wait until it has."""
        self.stopped = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __iter__(self):
        """Its values as they come; then what it failed with."""
        try:
            while (value := self._get()) is not _END:
                yield value
        except BaseException:
            self.stop()
            raise
        self._thread.join()
        if self._raised is not None:
            raise self._raised
        check(self.status, self.error)

    def _get(self):
        while True:  # with a limit of time, signals are seen on every system
            try:
                return self._values.get(timeout=0.2)
            except queue.Empty:
                pass

    def wait(self):
        """To its end."""
        for _ in self:
            pass
