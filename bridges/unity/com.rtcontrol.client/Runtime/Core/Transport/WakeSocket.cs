using System.Collections.Generic;
using System.Net;
using System.Net.Sockets;

namespace RtControl
{
    /// <summary>A datagram socket that talks to itself: ends a Select from another thread.</summary>
    internal sealed class WakeSocket
    {
        private static readonly byte[] One = { 0 };

        private readonly object _lock = new object();
        private readonly byte[] _sink = new byte[16];
        private Socket _socket;

        public WakeSocket()
        {
            try
            {
                _socket = new Socket(AddressFamily.InterNetwork, SocketType.Dgram, ProtocolType.Udp) { Blocking = false };
                _socket.Bind(new IPEndPoint(IPAddress.Loopback, 0));
                // Connected to itself, it hears nobody else.
                _socket.Connect(_socket.LocalEndPoint);
            }
            catch (SocketException)
            {
                Close(); // a system without loopback: the waits are short instead
            }
        }

        public bool Works
        {
            get { return _socket != null; }
        }

        public void AddTo(List<Socket> sockets)
        {
            if (_socket != null) sockets.Add(_socket);
        }

        public void Wake()
        {
            lock (_lock)
            {
                SocketError ignored;
                // A full buffer wakes as well.
                if (_socket != null) _socket.Send(One, 0, 1, SocketFlags.None, out ignored);
            }
        }

        public void Drain(List<Socket> ready)
        {
            SocketError error;
            if (_socket == null || !ready.Contains(_socket)) return;
            do _socket.Receive(_sink, 0, _sink.Length, SocketFlags.None, out error);
            while (error == SocketError.Success);
            // One that a system took away while the app was in the background would end every wait at once.
            if (error != SocketError.WouldBlock) Close();
        }

        public void Close()
        {
            lock (_lock)
            {
                if (_socket != null) _socket.Close();
                _socket = null;
            }
        }
    }
}
