using System;
using System.Collections.Generic;
using System.Globalization;
using System.Net;
using System.Net.Sockets;

namespace RtControl
{
    /// <summary>
    /// A DEALER of ZMTP 3.0 (NULL) over TCP, all in managed code: no native library, no static context that outlives
    /// Play mode. For loopback and trusted networks; CURVE needs <see cref="LibZmqTransport"/>.
    /// </summary>
    public sealed class ZmtpTransport : IRtTransport
    {
        private const long HandshakeNs = 3000000000L;
        private const int MaxOutBytes = 2 * RtLimits.MaxMessageBytes;
        private const int SendBufferBytes = 1 << 18, SendChunkBytes = 1 << 14;

        private readonly string _host;
        private readonly int _port;
        private readonly long _openedNs = MonotonicClock.NowNs;
        private readonly ZmtpFrames _frames = new ZmtpFrames();
        private readonly byte[] _chunk = new byte[65536];
        private readonly WakeSocket _wake = new WakeSocket();
        private readonly List<Socket> _read = new List<Socket>(2), _write = new List<Socket>(1), _failed = new List<Socket>(1);
        private IAsyncResult _resolving;
        private Queue<IPAddress> _addresses;
        private Socket _socket;
        private bool _connected, _greeted, _more;
        private byte[] _out = new byte[4096];
        private int _outStart, _outEnd;

        /// <summary>Begins to connect. Throws WireException where the endpoint is none.</summary>
        public ZmtpTransport(string endpoint) : this(endpoint, null)
        {
        }

        /// <summary>The same for a host whose addresses are known.</summary>
        internal ZmtpTransport(string endpoint, IEnumerable<IPAddress> addresses)
        {
            Parse(endpoint, out _host, out _port);
            Trouble = "nobody answers at " + endpoint;
            IPAddress address;
            if (addresses != null) _addresses = new Queue<IPAddress>(addresses);
            else if (IPAddress.TryParse(_host, out address)) _addresses = new Queue<IPAddress>(new[] { address });
            else _resolving = Dns.BeginGetHostAddresses(_host, null, null);
            Append(ZmtpHandshake.Greeting());
            byte[] ready = ZmtpHandshake.Ready();
            Append(ZmtpFrames.Head(ready.Length, false, true));
            Append(ready);
            Guard(Connect);
        }

        public RtTransportState State { get; private set; }
        public string Trouble { get; private set; }

        public static void Parse(string endpoint, out string host, out int port)
        {
            port = 0;
            host = "";
            int colon = endpoint == null ? -1 : endpoint.LastIndexOf(':');
            bool fits = colon > 6 && endpoint.StartsWith("tcp://", StringComparison.Ordinal);
            if (fits) host = endpoint.Substring(6, colon - 6).Trim('[', ']');
            fits = fits && int.TryParse(endpoint.Substring(colon + 1), NumberStyles.None, CultureInfo.InvariantCulture, out port);
            const int longest = 255; // what a name's resolver takes
            if (!fits || host.Length == 0 || host.Length > longest || port < 1 || port > 65535)
                throw new WireException(WireException.Invalid, "endpoint", "give one such as tcp://127.0.0.1:5555");
        }

        public bool Send(IList<byte[]> parts)
        {
            if (State != RtTransportState.Up) return false;
            int size = 0;
            foreach (byte[] part in parts) size += part.Length + 9;
            if (_outEnd - _outStart + size > MaxOutBytes) return false;
            for (int i = 0; i < parts.Count; i++)
            {
                Append(ZmtpFrames.Head(parts[i].Length, i + 1 < parts.Count, false));
                Append(parts[i]);
            }
            Guard(Flush);
            return State == RtTransportState.Up;
        }

        public List<byte[]> Receive()
        {
            List<byte[]> message = null;
            if (State == RtTransportState.Up) Guard(() => message = Next());
            return message;
        }

        public void Wait(int milliseconds)
        {
            if (State == RtTransportState.Lost || _more) return;
            bool connecting = _socket != null && !_connected;
            _read.Clear();
            _write.Clear();
            _failed.Clear();
            _wake.AddTo(_read);
            if (_connected) _read.Add(_socket);
            if (connecting || _connected && _outEnd > _outStart) _write.Add(_socket);
            if (connecting) _failed.Add(_socket); // Windows tells a refused connection here
            // Names are resolved by the system beside us, and tell nobody when they are.
            if (_socket == null || !_wake.Works) milliseconds = Math.Min(milliseconds, 5);
            Guard(() => Select(milliseconds));
            Guard(() => Carry(connecting));
        }

        public void Wake()
        {
            _wake.Wake();
        }

        public void Close(int lingerMs)
        {
            long untilNs = MonotonicClock.NowNs + lingerMs * 1000000L;
            while (State == RtTransportState.Up && _outEnd > _outStart && MonotonicClock.NowNs < untilNs)
                Guard(() =>
                {
                    if (_socket.Poll(5000, SelectMode.SelectWrite)) Flush();
                });
            State = RtTransportState.Lost;
            if (_socket != null) _socket.Close();
            _socket = null;
            _wake.Close();
        }

        private void Select(int milliseconds)
        {
            if (_read.Count + _write.Count == 0) System.Threading.Thread.Sleep(milliseconds);
            else Socket.Select(_read, _write, _failed, milliseconds * 1000);
            _wake.Drain(_read);
        }

        /// <summary>What the wait has brought: a connection, room to send, the handshake's bytes.</summary>
        private void Carry(bool connecting)
        {
            if (_socket == null) Connect();
            else if (connecting && (_write.Count > 0 || _failed.Count > 0)) Connected();
            else if (_connected) Flush();
            if (_connected && State == RtTransportState.Connecting && _read.Contains(_socket)) Fill();
            if (_connected && State == RtTransportState.Connecting) Handshake();
            if (State == RtTransportState.Connecting && MonotonicClock.NowNs - _openedNs > HandshakeNs)
                throw new ZmtpException(_connected ? "the peer says nothing" : Trouble);
        }

        private void Connect()
        {
            if (_addresses == null)
            {
                if (!_resolving.IsCompleted) return;
                IPAddress[] found = Dns.EndGetHostAddresses(_resolving);
                // IPv4 first: a server on 127.0.0.1 is not reached by way of ::1.
                Array.Sort(found, (a, b) => a.AddressFamily.CompareTo(b.AddressFamily));
                _addresses = new Queue<IPAddress>(found);
            }
            if (_addresses.Count == 0) throw new ZmtpException(_host + " has no address");
            while (_socket == null)
            {
                var to = new IPEndPoint(_addresses.Dequeue(), _port);
                try
                {
                    _socket = new Socket(to.AddressFamily, SocketType.Stream, ProtocolType.Tcp)
                    {
                        Blocking = false, NoDelay = true, SendBufferSize = SendBufferBytes,
                    };
                    _socket.Connect(to);
                }
                catch (SocketException error)
                {
                    if (error.SocketErrorCode == SocketError.WouldBlock || error.SocketErrorCode == SocketError.InProgress) return;
                    // No way there: a phone's network may have no IPv4, say. The next address may have one.
                    if (_socket != null) _socket.Close();
                    _socket = null;
                    if (_addresses.Count == 0) throw;
                }
            }
        }

        private void Connected()
        {
            var error = (SocketError)(int)_socket.GetSocketOption(SocketOptionLevel.Socket, SocketOptionName.Error);
            if (error == SocketError.Success && _failed.Count == 0)
            {
                _connected = true;
                Flush();
                return;
            }
            _socket.Close();
            _socket = null;
            if (_addresses.Count == 0) throw new ZmtpException(Trouble);
            Connect();
        }

        private void Handshake()
        {
            if (!_greeted)
            {
                ZmtpHandshake.CheckGreeting(_frames.Buffer, _frames.Start, _frames.Count);
                if (_frames.Count < ZmtpHandshake.GreetingLength) return;
                _frames.Skip(ZmtpHandshake.GreetingLength);
                _greeted = true;
            }
            List<byte[]> early = _frames.Next();
            if (_frames.Commands.Count > 0)
            {
                // A message right behind READY is an answer to nothing that we said.
                ZmtpHandshake.CheckReady(_frames.Commands.Dequeue());
                State = RtTransportState.Up;
                Trouble = "the server says nothing";
            }
            else if (early != null) throw new ZmtpException("a message before READY");
        }

        private List<byte[]> Next()
        {
            List<byte[]> message = _frames.Next();
            if (message == null && Fill()) message = _frames.Next();
            // Nothing may be left behind in the buffer when the next wait begins.
            _more = message != null;
            while (_frames.Commands.Count > 0)
            {
                byte[] command = _frames.Commands.Dequeue();
                if (ZmtpHandshake.CommandName(command) != "PING") continue;
                byte[] pong = ZmtpHandshake.Pong(command);
                if (_outEnd - _outStart > MaxOutBytes) continue;
                Append(ZmtpFrames.Head(pong.Length, false, true));
                Append(pong);
                Flush();
            }
            return message;
        }

        /// <summary>Takes what has arrived. False: nothing.</summary>
        private bool Fill()
        {
            SocketError error;
            int count = _socket.Receive(_chunk, 0, _chunk.Length, SocketFlags.None, out error);
            if (error == SocketError.WouldBlock) return false;
            if (error != SocketError.Success || count == 0)
                throw new ZmtpException(State == RtTransportState.Up
                    ? "the connection was lost"
                    : "the peer closed the connection at once: it wants a key, or is no rtcontrol server");
            _frames.Feed(_chunk, count);
            return true;
        }

        private void Flush()
        {
            // Mono's Send spins until the last byte is taken, also on a socket that does not block. So it gets no more
            // than there is room for: a socket with room has it for a third of its buffer at least.
            while (_connected && _outEnd > _outStart && _socket.Poll(0, SelectMode.SelectWrite))
            {
                SocketError error;
                int count = Math.Min(SendChunkBytes, _outEnd - _outStart);
                int sent = _socket.Send(_out, _outStart, count, SocketFlags.None, out error);
                if (sent > 0) _outStart += sent;
                if (error == SocketError.WouldBlock) return;
                if (error != SocketError.Success) throw new ZmtpException("the connection was lost");
            }
        }

        private void Append(byte[] bytes)
        {
            if (_outStart == _outEnd) _outStart = _outEnd = 0;
            if (_outEnd + bytes.Length > _out.Length)
            {
                int pending = _outEnd - _outStart;
                byte[] to = pending + bytes.Length > _out.Length ? new byte[2 * (pending + bytes.Length)] : _out;
                Buffer.BlockCopy(_out, _outStart, to, 0, pending);
                _out = to;
                _outStart = 0;
                _outEnd = pending;
            }
            Buffer.BlockCopy(bytes, 0, _out, _outEnd, bytes.Length);
            _outEnd += bytes.Length;
        }

        private void Guard(Action action)
        {
            if (State == RtTransportState.Lost) return;
            try
            {
                action();
            }
            catch (Exception error) when (error is ZmtpException || error is SocketException || error is ObjectDisposedException)
            {
                Trouble = error is ZmtpException ? error.Message : Trouble + " (" + error.Message + ")";
                State = RtTransportState.Lost;
            }
        }
    }
}
