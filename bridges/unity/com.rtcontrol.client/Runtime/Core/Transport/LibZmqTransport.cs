using System;
using System.Collections.Generic;
using System.Text;

namespace RtControl
{
    /// <summary>
    /// The same over libzmq, for CURVE and ipc: put the library of your platform (`libzmq`) into Assets/Plugins. Use:
    /// <c>options.Transport = endpoint => new LibZmqTransport(endpoint, serverKey, publicKey, secretKey)</c>.
    /// </summary>
    public sealed class LibZmqTransport : IRtTransport
    {
        private const int HighWater = 64;

        private readonly object _lock = new object();
        private readonly byte[] _buffer = new byte[RtLimits.MaxMessageBytes];
        private IntPtr _context, _socket, _wakeIn, _wakeOut;

        /// <summary>
        /// Keys as Z85 text of 40 characters; all three null: no CURVE. Throws WireException for an endpoint or key
        /// that cannot be used, and where there is no libzmq.
        /// </summary>
        public LibZmqTransport(string endpoint, string serverKey = null, string publicKey = null, string secretKey = null)
        {
            Trouble = "nobody answers at " + RtWebSocket.Shown(endpoint) + (serverKey == null ? "" : ", or it does not accept this key");
            _context = Context();
            _socket = LibZmq.zmq_socket(_context, LibZmq.Dealer);
            _wakeOut = LibZmq.zmq_socket(_context, LibZmq.Pair);
            _wakeIn = LibZmq.zmq_socket(_context, LibZmq.Pair);
            bool set = LibZmq.Set(_socket, LibZmq.Linger, 0) & LibZmq.Set(_socket, LibZmq.SendHighWater, HighWater)
                & LibZmq.Set(_socket, LibZmq.ReceiveHighWater, HighWater) & LibZmq.Set(_socket, LibZmq.Immediate, 1)
                & LibZmq.Set(_socket, LibZmq.ReconnectIvl, 100) & LibZmq.Set(_socket, LibZmq.ReconnectIvlMax, 2000)
                & LibZmq.zmq_setsockopt(_socket, LibZmq.MaxMessageSize, BitConverter.GetBytes((long)RtLimits.MaxMessageBytes), (UIntPtr)8) == 0
                & LibZmq.Set(_wakeIn, LibZmq.Linger, 0) & LibZmq.Set(_wakeOut, LibZmq.Linger, 0);
            if (serverKey != null)
                set &= SetKey(LibZmq.CurveServerKey, serverKey) & SetKey(LibZmq.CurvePublicKey, publicKey)
                    & SetKey(LibZmq.CurveSecretKey, secretKey);
            bool woken = LibZmq.zmq_bind(_wakeOut, "inproc://wake") == 0 && LibZmq.zmq_connect(_wakeIn, "inproc://wake") == 0;
            if (set && woken && LibZmq.zmq_connect(_socket, endpoint) == 0)
            {
                // The library connects, and reconnects, by itself; until then it refuses to send.
                State = RtTransportState.Up;
                return;
            }
            Close(0);
            throw new WireException(WireException.Invalid, "endpoint", RtWebSocket.Shown(endpoint) + " or its keys cannot be used by libzmq");
        }

        public RtTransportState State { get; private set; }
        public string Trouble { get; private set; }

        public bool Json
        {
            get { return false; }
        }

        public bool Send(IList<byte[]> parts)
        {
            for (var i = 0; i < parts.Count; i++)
            {
                int flags = LibZmq.DontWait | (i + 1 < parts.Count ? LibZmq.SendMore : 0);
                if (LibZmq.zmq_send(_socket, parts[i], (UIntPtr)parts[i].Length, flags) < 0) return false;
            }
            return true;
        }

        public List<byte[]> Receive()
        {
            var parts = new List<byte[]>();
            int more = 1;
            while (more != 0)
            {
                int size = LibZmq.zmq_recv(_socket, _buffer, (UIntPtr)_buffer.Length, LibZmq.DontWait);
                if (size < 0) return null;
                var part = new byte[Math.Min(size, _buffer.Length)];
                Buffer.BlockCopy(_buffer, 0, part, 0, part.Length);
                // Of one with too many parts, as many as show that.
                if (parts.Count <= RtLimits.MaxParts) parts.Add(part);
                var length = (UIntPtr)4;
                LibZmq.zmq_getsockopt(_socket, LibZmq.ReceiveMore, ref more, ref length);
            }
            return parts;
        }

        public void Wait(int milliseconds)
        {
            LibZmq.Poll(_socket, _wakeOut, milliseconds);
            while (LibZmq.zmq_recv(_wakeOut, _buffer, (UIntPtr)1, LibZmq.DontWait) >= 0)
            {
            }
        }

        public void Wake()
        {
            // The one socket that several threads use: the lock hands it from one to the other.
            lock (_lock)
            {
                if (_wakeIn != IntPtr.Zero) LibZmq.zmq_send(_wakeIn, new byte[1], (UIntPtr)1, LibZmq.DontWait);
            }
        }

        public void Close(int lingerMs)
        {
            lock (_lock)
            {
                if (_wakeIn == IntPtr.Zero) return;
                LibZmq.zmq_close(_wakeIn);
                _wakeIn = IntPtr.Zero;
            }
            LibZmq.Set(_socket, LibZmq.Linger, lingerMs);
            LibZmq.zmq_close(_wakeOut);
            LibZmq.zmq_close(_socket);
            LibZmq.zmq_ctx_term(_context);
            State = RtTransportState.Lost;
        }

        private static IntPtr Context()
        {
            try
            {
                return LibZmq.zmq_ctx_new();
            }
            catch (Exception error) when (error is TypeLoadException || error is BadImageFormatException)
            {
                // DllNotFoundException and EntryPointNotFoundException are kinds of the first.
                throw new WireException(WireException.Invalid, "keys", "libzmq cannot be loaded (" + error.GetType().Name
                    + "): put the library for this platform and processor into Assets/Plugins, or use tcp:// without keys");
            }
        }

        private bool SetKey(int option, string key)
        {
            // Z85 with its final zero, as the library wants it.
            byte[] text = Encoding.ASCII.GetBytes((key ?? "") + "\0");
            return text.Length == 41 && LibZmq.zmq_setsockopt(_socket, option, text, (UIntPtr)text.Length) == 0;
        }
    }
}
