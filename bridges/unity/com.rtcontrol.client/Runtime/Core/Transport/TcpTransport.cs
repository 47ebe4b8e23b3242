using System;
using System.Collections.Generic;
using System.Net;
using System.Net.Sockets;

namespace RtControl
{
    /// <summary>Bytes of a peer that break the transport's protocol: the connection ends.</summary>
    internal sealed class PeerException : Exception
    {
        public PeerException(string what) : base(what)
        {
        }
    }

    internal enum TransportState
    {
        Connecting,
        Up,

        /// <summary>To be closed, and another one made after a pause.</summary>
        Lost,
    }

    /// <summary>
    /// A TCP connection that blocks nowhere but in Wait. All but Wake is called by one thread only. A subclass has the
    /// handshake, and what a message is.
    /// </summary>
    internal abstract class TcpTransport
    {
        internal const int MaxOutBytes = 2 * RtLimits.MaxMessageBytes;
        private const long HandshakeNs = 3000000000L;
        private const int SendBufferBytes = 1 << 18, SendChunkBytes = 1 << 14;

        private readonly string _host;
        private readonly int _port;
        private readonly long _openedNs = MonotonicClock.NowNs;
        private readonly byte[] _chunk = new byte[65536];
        private readonly WakeSocket _wake = new WakeSocket();
        private readonly List<Socket> _read = new List<Socket>(2), _write = new List<Socket>(1), _failed = new List<Socket>(1);
        private IAsyncResult _resolving;
        private Queue<IPAddress> _addresses;
        private Socket _socket;
        private bool _connected, _more;
        private byte[] _out = new byte[4096];
        private int _outStart, _outEnd;

        internal TcpTransport(string endpoint, string host, int port, IEnumerable<IPAddress> addresses)
        {
            _host = host;
            _port = port;
            Trouble = "nobody answers at " + endpoint;
            IPAddress address;
            if (addresses != null) _addresses = new Queue<IPAddress>(addresses);
            else if (IPAddress.TryParse(_host, out address)) _addresses = new Queue<IPAddress>(new[] { address });
            else _resolving = Dns.BeginGetHostAddresses(_host, null, null);
        }

        public TransportState State { get; private set; }

        /// <summary>Why there is no connection; once it is up, why there might be no answer. For people.</summary>
        public string Trouble { get; private set; }

        /// <summary>Bytes that wait to be sent.</summary>
        internal int Waiting
        {
            get { return _outEnd - _outStart; }
        }

        /// <summary>Why a peer closes before it has said anything, for people.</summary>
        internal abstract string ClosedEarly { get; }

        /// <summary>False: it cannot be sent now.</summary>
        public bool Send(IList<byte[]> parts)
        {
            if (State != TransportState.Up) return false;
            int size = 0;
            foreach (byte[] part in parts) size += part.Length + 16; // of a frame's head
            if (Waiting + size > MaxOutBytes) return false;
            Put(parts);
            Guard(Flush);
            return State == TransportState.Up;
        }

        /// <summary>The next message's parts, null where there is none now.</summary>
        public List<byte[]> Receive()
        {
            List<byte[]> message = null;
            if (State == TransportState.Up)
                Guard(() =>
                {
                    message = Take();
                    if (message == null && Fill()) message = Take();
                    // Nothing may be left behind in the buffer when the next wait begins.
                    _more = message != null;
                    if (Waiting > 0) Flush();
                });
            return message;
        }

        /// <summary>Until something may be received, Wake is called, or the time is over; carries on with what is pending.</summary>
        public virtual void Wait(int milliseconds)
        {
            if (State == TransportState.Lost || _more) return;
            bool connecting = _socket != null && !_connected;
            _read.Clear();
            _write.Clear();
            _failed.Clear();
            _wake.AddTo(_read);
            if (_connected) _read.Add(_socket);
            if (connecting || _connected && Waiting > 0) _write.Add(_socket);
            if (connecting) _failed.Add(_socket); // Windows tells a refused connection here
            // Names are resolved by the system beside us, and tell nobody when they are.
            if (_socket == null || !_wake.Works) milliseconds = Math.Min(milliseconds, 5);
            Guard(() => Select(milliseconds));
            Guard(() => Carry(connecting));
        }

        /// <summary>Ends the present or next Wait; from any thread.</summary>
        public void Wake()
        {
            _wake.Wake();
        }

        /// <summary>Gives what was sent up to so long to leave.</summary>
        public void Close(int lingerMs)
        {
            long untilNs = MonotonicClock.NowNs + lingerMs * 1000000L;
            if (State == TransportState.Up) Guard(Flush);
            while (State == TransportState.Up && Waiting > 0 && MonotonicClock.NowNs < untilNs)
                Guard(() =>
                {
                    if (_socket.Poll(5000, SelectMode.SelectWrite)) Flush();
                });
            State = TransportState.Lost;
            if (_socket != null) _socket.Close();
            _socket = null;
            _wake.Close();
        }

        /// <summary>The peer sends no more. True: that is no loss.</summary>
        internal virtual bool AtEnd()
        {
            return false;
        }

        /// <summary>Bytes that have arrived.</summary>
        internal abstract void Feed(byte[] bytes, int count);

        /// <summary>Goes on with the handshake; true: it is done. Throws PeerException.</summary>
        internal abstract bool Shake();

        /// <summary>The next message of what has arrived, null where there is none. Throws PeerException.</summary>
        internal abstract List<byte[]> Take();

        /// <summary>Appends a message's bytes.</summary>
        internal abstract void Put(IList<byte[]> parts);

        internal void Append(byte[] bytes)
        {
            if (_outStart == _outEnd) _outStart = _outEnd = 0;
            if (_outEnd + bytes.Length > _out.Length)
            {
                int pending = Waiting;
                byte[] to = pending + bytes.Length > _out.Length ? new byte[2 * (pending + bytes.Length)] : _out;
                Buffer.BlockCopy(_out, _outStart, to, 0, pending);
                _out = to;
                _outStart = 0;
                _outEnd = pending;
            }
            Buffer.BlockCopy(bytes, 0, _out, _outEnd, bytes.Length);
            _outEnd += bytes.Length;
        }

        internal void Flush()
        {
            // Mono's Send spins until the last byte is taken, also on a socket that does not block. So it gets no more
            // than there is room for: a socket with room has it for a third of its buffer at least.
            while (_connected && Waiting > 0 && _socket.Poll(0, SelectMode.SelectWrite))
            {
                SocketError error;
                int count = Math.Min(SendChunkBytes, Waiting);
                int sent = _socket.Send(_out, _outStart, count, SocketFlags.None, out error);
                if (sent > 0) _outStart += sent;
                if (error == SocketError.WouldBlock) return;
                if (error != SocketError.Success) throw new PeerException("the connection was lost");
            }
        }

        /// <summary>Begins to connect, once the kind of its own is ready.</summary>
        internal void Begin()
        {
            Guard(Connect);
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
            if (_connected && State == TransportState.Connecting && _read.Contains(_socket)) Fill();
            if (_connected && State == TransportState.Connecting && Shake())
            {
                State = TransportState.Up;
                Trouble = "the server says nothing";
                _more = true; // a message may have come right behind the handshake
            }
            if (State == TransportState.Connecting && MonotonicClock.NowNs - _openedNs > HandshakeNs)
                throw new PeerException(_connected ? "the peer says nothing" : Trouble);
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
            if (_addresses.Count == 0) throw new PeerException(_host + " has no address");
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
            if (_addresses.Count == 0) throw new PeerException(Trouble);
            Connect();
        }

        /// <summary>Takes what has arrived. False: nothing.</summary>
        private bool Fill()
        {
            SocketError error;
            int count = _socket.Receive(_chunk, 0, _chunk.Length, SocketFlags.None, out error);
            if (error == SocketError.WouldBlock) return false;
            if (error == SocketError.Success && count == 0 && AtEnd()) return true;
            if (error != SocketError.Success || count == 0)
                throw new PeerException(State == TransportState.Up ? "the connection was lost" : ClosedEarly);
            Feed(_chunk, count);
            return true;
        }

        private void Guard(Action action)
        {
            if (State == TransportState.Lost) return;
            try
            {
                action();
            }
            catch (Exception error) when (error is PeerException || error is SocketException || error is ObjectDisposedException)
            {
                Trouble = error is PeerException ? error.Message : Trouble + " (" + error.Message + ")";
                State = TransportState.Lost;
            }
        }
    }
}
