using System;
using System.Collections.Generic;
using System.Globalization;
using System.Net;

namespace RtControl
{
    /// <summary>
    /// A DEALER of ZMTP 3.0 (NULL) over TCP, all in managed code: no native library, no static context that outlives
    /// Play mode. Without encryption: for loopback and trusted networks.
    /// </summary>
    internal class ZmtpTransport : TcpTransport
    {
        private readonly ZmtpFrames _frames = new ZmtpFrames();
        private bool _greeted;

        /// <summary>Begins to connect. Throws WireException where the endpoint is none.</summary>
        public ZmtpTransport(string endpoint) : this(endpoint, null)
        {
        }

        /// <summary>The same for a host whose addresses are known.</summary>
        internal ZmtpTransport(string endpoint, IEnumerable<IPAddress> addresses)
            : base(endpoint, HostOf(endpoint), PortOf(endpoint), addresses)
        {
            Append(ZmtpHandshake.Greeting());
            byte[] ready = ZmtpHandshake.Ready();
            Append(ZmtpFrames.Head(ready.Length, false, true));
            Append(ready);
            Begin();
        }

        internal override string ClosedEarly
        {
            get { return "the peer closed the connection at once: it wants a key, or is no rtcontrol server"; }
        }

        /// <summary>Throws WireException where the endpoint is none.</summary>
        public static void Parse(string endpoint, out string host, out int port)
        {
            if (!TryParse(endpoint, out host, out port))
                throw new WireException(WireException.Invalid, "endpoint", "give one such as tcp://127.0.0.1:5555 or http://127.0.0.1:8000/connect");
        }

        public static bool TryParse(string endpoint, out string host, out int port)
        {
            port = 0;
            host = "";
            int colon = endpoint == null ? -1 : endpoint.LastIndexOf(':');
            bool fits = colon > 6 && endpoint.StartsWith("tcp://", StringComparison.Ordinal);
            if (fits) host = endpoint.Substring(6, colon - 6).Trim('[', ']');
            fits = fits && int.TryParse(endpoint.Substring(colon + 1), NumberStyles.None, CultureInfo.InvariantCulture, out port);
            const int longest = 255; // what a name's resolver takes
            return fits && host.Length > 0 && host.Length <= longest && port > 0 && port < 65536;
        }

        internal override void Feed(byte[] bytes, int count)
        {
            _frames.Feed(bytes, count);
        }

        internal override bool Shake()
        {
            if (!_greeted)
            {
                ZmtpHandshake.CheckGreeting(_frames.Buffer, _frames.Start, _frames.Count);
                if (_frames.Count < ZmtpHandshake.GreetingLength) return false;
                _frames.Skip(ZmtpHandshake.GreetingLength);
                _greeted = true;
            }
            List<byte[]> early = _frames.Next();
            if (_frames.Commands.Count > 0)
            {
                // A message right behind READY is an answer to nothing that we said.
                ZmtpHandshake.CheckReady(_frames.Commands.Dequeue());
                return true;
            }
            if (early != null) throw new PeerException("a message before READY");
            return false;
        }

        internal override List<byte[]> Take()
        {
            List<byte[]> message = _frames.Next();
            while (_frames.Commands.Count > 0)
            {
                byte[] command = _frames.Commands.Dequeue();
                if (ZmtpHandshake.CommandName(command) != "PING") continue;
                byte[] pong = ZmtpHandshake.Pong(command);
                if (Waiting > MaxOutBytes) continue;
                Append(ZmtpFrames.Head(pong.Length, false, true));
                Append(pong);
            }
            return message;
        }

        internal override void Put(IList<byte[]> parts)
        {
            for (int i = 0; i < parts.Count; i++)
            {
                Append(ZmtpFrames.Head(parts[i].Length, i + 1 < parts.Count, false));
                Append(parts[i]);
            }
        }

        private static string HostOf(string endpoint)
        {
            string host;
            int port;
            Parse(endpoint, out host, out port);
            return host;
        }

        private static int PortOf(string endpoint)
        {
            string host;
            int port;
            Parse(endpoint, out host, out port);
            return port;
        }
    }
}
