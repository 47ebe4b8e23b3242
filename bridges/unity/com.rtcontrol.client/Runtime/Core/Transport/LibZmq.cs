using System;
using System.Runtime.InteropServices;

namespace RtControl
{
    /// <summary>The functions of libzmq 4.2 or later that are used, and their constants.</summary>
    internal static class LibZmq
    {
        public const int Pair = 0, Dealer = 5;
        public const int DontWait = 1, SendMore = 2;
        public const int PollIn = 1;

        public const int ReceiveMore = 13, Linger = 17, SendHighWater = 23, ReceiveHighWater = 24, ReconnectIvl = 18;
        public const int ReconnectIvlMax = 21, MaxMessageSize = 22, Immediate = 39;
        public const int CurvePublicKey = 48, CurveSecretKey = 49, CurveServerKey = 50;

        private const string Library = "libzmq";
        private const CallingConvention C = CallingConvention.Cdecl;

        [DllImport(Library, CallingConvention = C)]
        public static extern IntPtr zmq_ctx_new();

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_ctx_term(IntPtr context);

        [DllImport(Library, CallingConvention = C)]
        public static extern IntPtr zmq_socket(IntPtr context, int type);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_close(IntPtr socket);

        [DllImport(Library, CallingConvention = C, SetLastError = true)]
        public static extern int zmq_setsockopt(IntPtr socket, int option, byte[] value, UIntPtr length);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_getsockopt(IntPtr socket, int option, ref int value, ref UIntPtr length);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_bind(IntPtr socket, string endpoint);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_connect(IntPtr socket, string endpoint);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_send(IntPtr socket, byte[] buffer, UIntPtr length, int flags);

        [DllImport(Library, CallingConvention = C)]
        public static extern int zmq_recv(IntPtr socket, byte[] buffer, UIntPtr length, int flags);

        [DllImport(Library, CallingConvention = C, EntryPoint = "zmq_poll")]
        private static extern int PollUnix([In, Out] ItemUnix[] items, int count, IntPtr timeoutMs);

        // A C long: 32 bits on Windows, pointer-sized elsewhere.
        [DllImport(Library, CallingConvention = C, EntryPoint = "zmq_poll")]
        private static extern int PollWindows([In, Out] ItemWindows[] items, int count, int timeoutMs);

        [StructLayout(LayoutKind.Sequential)]
        private struct ItemUnix
        {
            public IntPtr Socket;
            public int Fd;
            public short Events, Returned;
        }

        [StructLayout(LayoutKind.Sequential)]
        private struct ItemWindows
        {
            public IntPtr Socket, Fd;
            public short Events, Returned;
        }

        /// <summary>Waits until one of two sockets has something.</summary>
        public static void Poll(IntPtr one, IntPtr two, int milliseconds)
        {
            if (Environment.OSVersion.Platform == PlatformID.Win32NT)
                PollWindows(new[] { new ItemWindows { Socket = one, Events = PollIn }, new ItemWindows { Socket = two, Events = PollIn } }, 2, milliseconds);
            else
                PollUnix(new[] { new ItemUnix { Socket = one, Events = PollIn }, new ItemUnix { Socket = two, Events = PollIn } }, 2, (IntPtr)milliseconds);
        }

        public static bool Set(IntPtr socket, int option, int value)
        {
            return zmq_setsockopt(socket, option, BitConverter.GetBytes(value), (UIntPtr)4) == 0;
        }
    }
}
