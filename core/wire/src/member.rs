/// Who a member is in its group, at one generation. A transaction that commits offsets for it has to name this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMetadata {
    /// The group.
    pub group: String,
    /// The topic that the group reads.
    pub topic: String,
    /// The member's id, as the broker gave it.
    pub member: String,
    /// The group's generation.
    pub generation: u64,
}
