#if UNITY_WEBGL && !UNITY_EDITOR
using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl.Unity
{
    /// <summary>
    /// The WebSocket of the browser that a WebGL player runs in. The browser waits, not we: a client there has no thread, and
    /// all is done in Pump. A page of another origin must be allowed by the server (`--allow-origin`).
    /// </summary>
    public sealed class WebGlTransport : IRtTransport
    {
        private const long HandshakeNs = 5000000000L;
        private const int Connecting = 0, Open = 1;
        private const int MaxWaiting = 2 * RtLimits.MaxMessageBytes;

        private readonly string _shown;
        private readonly int _handle;
        private readonly long _openedNs = MonotonicClock.NowNs;
        private bool _opened, _closed;

        /// <summary>
        /// Begins to connect. <paramref name="token"/>: the server's access token; null: none. Throws WireException where the
        /// endpoint or the token is none.
        /// </summary>
        public WebGlTransport(string endpoint, string token = null)
        {
            _shown = RtWebSocket.Shown(endpoint);
            _handle = WebGlSocket.RtControlSocketOpen(RtWebSocket.Url(endpoint), RtWebSocket.Protocols(token));
        }

        public RtTransportState State
        {
            get
            {
                if (_closed || _handle == 0) return RtTransportState.Lost;
                int state = WebGlSocket.RtControlSocketState(_handle);
                _opened = _opened || state == Open;
                if (state == Connecting) return MonotonicClock.NowNs - _openedNs > HandshakeNs ? RtTransportState.Lost : RtTransportState.Connecting;
                // What came before the end is heard first.
                return state == Open || WebGlSocket.RtControlSocketNext(_handle) >= 0 ? RtTransportState.Up : RtTransportState.Lost;
            }
        }

        public string Trouble
        {
            get
            {
                if (_handle == 0) return "the browser opens no WebSocket to " + _shown + ": a page of https:// may use wss:// alone";
                if (!_opened) return "nobody answers at " + _shown + ", or it lets this page not in (its --allow-origin, and an access token)";
                if (WebGlSocket.RtControlSocketState(_handle) == Open) return "the server says nothing";
                var why = new byte[256];
                int length = WebGlSocket.RtControlSocketWhy(_handle, why, why.Length);
                return "the WebSocket was closed (" + Encoding.UTF8.GetString(why, 0, Math.Max(0, length)) + ")";
            }
        }

        public bool Json
        {
            get { return true; }
        }

        /// <summary>For <see cref="RtOptions.Transport"/>.</summary>
        public static Func<string, IRtTransport> Use(string token)
        {
            return endpoint => new WebGlTransport(endpoint, token);
        }

        public bool Send(IList<byte[]> parts)
        {
            return !_closed && WebGlSocket.RtControlSocketWaiting(_handle) + parts[0].Length <= MaxWaiting
                && WebGlSocket.RtControlSocketSend(_handle, parts[0], parts[0].Length) != 0;
        }

        public List<byte[]> Receive()
        {
            int length = _closed ? -1 : WebGlSocket.RtControlSocketNext(_handle);
            if (length < 0) return null;
            var text = new byte[length + 1];
            WebGlSocket.RtControlSocketTake(_handle, text, text.Length);
            Array.Resize(ref text, length);
            return length == 0 ? new List<byte[]>() : new List<byte[]> { text };
        }

        public void Wait(int milliseconds)
        {
        }

        public void Wake()
        {
        }

        public void Close(int lingerMs)
        {
            if (!_closed && _handle != 0) WebGlSocket.RtControlSocketClose(_handle);
            _closed = true;
        }
    }
}
#endif
