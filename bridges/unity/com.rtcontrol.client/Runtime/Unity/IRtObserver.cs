namespace RtControl.Unity
{
    /// <summary>A component that says what the model is to read; RtControlClient asks it `hz` times a second.</summary>
    public interface IRtObserver
    {
        /// <summary>One look at the world, in the main thread. Null: nothing to say now.</summary>
        string Observe();
    }
}
