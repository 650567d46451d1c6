//! Statements that are sent together and run one after the other.

/// Awaits statements that are sent together and run one after the other. The first of them that failed is the error: those behind it in a transaction fail over it, and their answers
/// may be seen sooner.
macro_rules! pipeline {
    ($($answer:expr),+ $(,)?) => {
        async {
            let answers = futures::join!($($answer),+);
            $crate::postgres::pipeline::InOrder::in_order(answers)
        }
    };
}
pub(crate) use pipeline;

/// Answers of statements in the order in which these were sent.
pub(crate) trait InOrder {
    /// What they answered.
    type Answers;
    /// How one fails.
    type Error;

    /// All of them, or the first error.
    fn in_order(self) -> std::result::Result<Self::Answers, Self::Error>;
}

macro_rules! in_order {
    ($($name:ident),+) => {
        impl<$($name,)+ Failed> InOrder for ($(std::result::Result<$name, Failed>,)+) {
            type Answers = ($($name,)+);
            type Error = Failed;

            #[expect(non_snake_case, reason = "one name for the type and its answer")]
            fn in_order(self) -> std::result::Result<Self::Answers, Failed> {
                let ($($name,)+) = self;
                Ok(($($name?,)+))
            }
        }
    };
}

in_order!(A, B);
in_order!(A, B, C);
in_order!(A, B, C, D);

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn the_first_error_of_a_pipeline_is_the_error_whichever_answer_is_seen_first() {
        let failed = |words: &'static str, pauses: u32| async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            Err::<(), _>(words)
        };
        let said = pipeline!(failed("57014", 2), failed("25P02", 0)).await;
        assert_eq!(said, Err("57014"));
        let fine = async { Ok::<_, &'static str>(1) };
        let said = pipeline!(fine, failed("55P03", 3), failed("25P02", 1), failed("25P02", 0)).await;
        assert_eq!(said.map(drop), Err("55P03"));
    }
}
