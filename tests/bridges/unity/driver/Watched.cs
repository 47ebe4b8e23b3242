using System;
using System.Collections.Generic;
using System.Reflection;
using System.Threading;

namespace RtControl.Driver
{
    /// <summary>
    /// A transport that notes who uses it: what the game's thread would have to wait for is what it does itself, and what
    /// another does under the lock that it takes too.
    /// </summary>
    internal sealed class Watched : IRtTransport
    {
        /// <summary>Uses in all, and those for which a frame would have to wait.</summary>
        public static int Uses, Waits;

        private static int _game;
        private static object _lock;
        private readonly IRtTransport _inner;

        public Watched(IRtTransport inner)
        {
            _inner = inner;
        }

        /// <summary>The game's client, told by the game's thread.</summary>
        public static void Of(RtClient client)
        {
            _game = Thread.CurrentThread.ManagedThreadId;
            _lock = ((Link)typeof(RtClient).GetField("_link", BindingFlags.Instance | BindingFlags.NonPublic).GetValue(client)).Lock;
        }

        public RtTransportState State { get { return Used().State; } }

        public bool Json { get { return _inner.Json; } }

        public string Trouble { get { return Used().Trouble; } }

        public bool Send(IList<byte[]> parts) { return Used().Send(parts); }

        public List<byte[]> Receive() { return Used().Receive(); }

        public void Wait(int milliseconds) { Used().Wait(milliseconds); }

        public void Wake() { _inner.Wake(); }

        public void Close(int lingerMs) { Used().Close(lingerMs); }

        private IRtTransport Used()
        {
            Interlocked.Increment(ref Uses);
            bool waits = Thread.CurrentThread.ManagedThreadId == _game || _lock != null && Monitor.IsEntered(_lock);
            if (waits) Interlocked.Increment(ref Waits);
            return _inner;
        }
    }
}
