// The browser's WebSocket for WebGlTransport.cs. C# asks, nothing here calls back: whatever a Unity version names its way
// of calling C# (Runtime.dynCall, Module.dynCall_*, makeDynCall) is not needed. Syntax of ES5, for the build of 2021.3.
var RtControlSocketLibrary = {
  $rtControlSockets: {
    last: 0,
    all: {},
    // A game that stands still is not to fill the page's memory.
    most: 1024,
    longest: 1048576
  },

  // A handle, 0 where the browser refuses the address. Protocols: one text, with commas.
  RtControlSocketOpen: function (url, protocols) {
    var one = { socket: null, queue: [], why: "" };
    try {
      one.socket = new WebSocket(UTF8ToString(url), UTF8ToString(protocols).split(","));
    } catch (error) {
      return 0;
    }
    one.socket.binaryType = "arraybuffer";
    one.socket.onmessage = function (event) {
      if (one.queue.length >= rtControlSockets.most) {
        one.why = "the game stood still while messages came";
        one.socket.close();
      } else if (typeof event.data === "string" && event.data.length > rtControlSockets.longest) {
        one.why = "a message of more than " + rtControlSockets.longest + " characters";
        one.socket.close();
      } else {
        one.queue.push(typeof event.data === "string" ? event.data : null);
      }
    };
    one.socket.onclose = function (event) {
      if (one.why === "") one.why = event.code + (event.reason ? ", " + event.reason : "");
    };
    rtControlSockets.last += 1;
    rtControlSockets.all[rtControlSockets.last] = one;
    return rtControlSockets.last;
  },

  // 0 connecting, 1 open, 2 closing, 3 closed.
  RtControlSocketState: function (handle) {
    var one = rtControlSockets.all[handle];
    return one ? one.socket.readyState : 3;
  },

  // Sends a text of so many bytes; 0: it cannot be sent.
  RtControlSocketSend: function (handle, text, length) {
    var one = rtControlSockets.all[handle];
    if (!one || one.socket.readyState !== 1) return 0;
    one.socket.send(UTF8ToString(text, length));
    return 1;
  },

  // Bytes that the browser has not sent yet.
  RtControlSocketWaiting: function (handle) {
    var one = rtControlSockets.all[handle];
    return one ? one.socket.bufferedAmount : 0;
  },

  // The next message's length in bytes; -1: there is none. One that is binary has a length of 0.
  RtControlSocketNext: function (handle) {
    var one = rtControlSockets.all[handle];
    if (!one || one.queue.length === 0) return -1;
    return one.queue[0] === null ? 0 : lengthBytesUTF8(one.queue[0]);
  },

  // Writes the next message and a final zero, and forgets it; `size` bytes at most.
  RtControlSocketTake: function (handle, into, size) {
    var one = rtControlSockets.all[handle];
    if (one && one.queue.length > 0) stringToUTF8(one.queue.shift() || "", into, size);
  },

  // Why it was closed, with a final zero; how many bytes that is without it.
  RtControlSocketWhy: function (handle, into, size) {
    var one = rtControlSockets.all[handle];
    return one ? stringToUTF8(one.why, into, size) : 0;
  },

  RtControlSocketClose: function (handle) {
    var one = rtControlSockets.all[handle];
    if (!one) return;
    one.socket.onmessage = one.socket.onclose = null;
    if (one.socket.readyState < 2) one.socket.close(1000);
    delete rtControlSockets.all[handle];
  }
};

autoAddDeps(RtControlSocketLibrary, "$rtControlSockets");
mergeInto(LibraryManager.library, RtControlSocketLibrary);
