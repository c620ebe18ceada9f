//! Every resource as it is to be: its id, its request, what it waits for and what is wrong with it.

use std::collections::BTreeMap;

use slipway_azure::reconcile::Error;

use super::{Mutation, Observer, problem_of};
use crate::{
    caches::Holder,
    inline::{self, Inline, Inventory, exports, expressions, order},
    resources::Resource,
};

impl<K: Holder> Observer<'_, K> {
    /// Every resource as it is to be, with what it waits for.
    pub(super) async fn describe(&mut self, decided: Inventory, mutation: Mutation) -> Result<(), Error> {
        let (mut places, cycles) = order(&decided.items);
        let stuck: Vec<usize> = (0..decided.items.len())
            .filter(|place| !places.contains(place))
            .collect();
        places.extend(stuck);
        let mut first_of_id: BTreeMap<String, String> = BTreeMap::new();
        let mut resources = Vec::new();
        for &place in &places {
            let inline = &decided.items[place];
            let mut resource = self.resource(inline).await?;
            let same = resource.id.as_ref().and_then(|id| {
                let display = resource.display();
                let earlier = first_of_id.insert(id.key().to_owned(), display.clone())?;
                Some(inline::Problem::SameId {
                    path: inline.path(),
                    object: display,
                    other: earlier,
                    id: id.as_str().to_owned(),
                })
            });
            let cycle = cycles.iter().find(|(index, _)| *index == inline.index);
            if let Some(problem) = same.as_ref().or(cycle.map(|(_, problem)| problem)) {
                resource.problem = Some(problem_of(problem));
            }
            resource.after = inline
                .references()
                .filter_map(|reference| {
                    let meant = |&other: &usize| decided.items[other].is_meant_by(reference);
                    places.iter().position(meant)
                })
                .collect();
            resources.push(resource);
        }
        for (name, problem) in &decided.problems {
            resources.push(Resource {
                // After those that can be read.
                index: usize::MAX,
                name: name.clone(),
                problem: Some(problem_of(problem)),
                ..Resource::default()
            });
        }
        if let Some((index, problem)) = &mutation.problem {
            let found = index.and_then(|index| resources.iter_mut().find(|one| one.index == index));
            match found {
                Some(resource) => resource.problem = Some(problem_of(problem)),
                None => self.held.problem = Some(problem_of(problem)),
            }
        }
        if let Some((index, reason, message)) = mutation.wait
            && let Some(resource) = resources.iter_mut().find(|one| one.index == index)
        {
            resource.wait = Some((reason, message));
        }
        self.held.resources = resources;
        Ok(())
    }

    async fn resource(&mut self, inline: &Inline) -> Result<Resource, Error> {
        let mut resource = Resource {
            name: inline.name(),
            index: inline.index,
            inline: Some(inline.clone()),
            ..Resource::default()
        };
        let chosen = match self.chosen(inline).await {
            Ok(chosen) => chosen,
            Err(problem) => {
                resource.problem = Some(problem);
                return Ok(resource);
            }
        };
        if chosen.borrowed {
            self.held.borrowing.insert(chosen.secret.to_string());
        }
        match self.catalog.id_of(inline, &chosen.subscription) {
            Ok(id) => {
                let problem = self.held.sign_in_problems.get(id.key());
                resource.problem = problem.cloned();
                resource.id = Some(id);
            }
            Err(problem) => resource.problem = Some(problem_of(&problem)),
        }
        resource.missing = inline
            .references()
            .filter(|reference| self.elsewhere.get(*reference) == Some(&false))
            .map(ToString::to_string)
            .collect();
        resource.credential = Some(chosen.secret);
        match exports(inline) {
            Ok(exports) => resource.exports = exports,
            Err(problem) => resource.problem = Some(problem_of(&problem)),
        }
        match expressions(inline) {
            Ok(expressions) => resource.expressions = expressions,
            Err(problem) => resource.problem = Some(problem_of(&problem)),
        }
        self.operate(&mut resource, inline);
        if resource.problem.is_none() {
            let lookup = self.lookup(inline, &chosen.subscription).await?;
            match self.catalog.put(inline, &lookup) {
                Ok(put) => resource.put = Some(put),
                Err(problem) => resource.problem = Some(problem_of(&problem)),
            }
        }
        Ok(resource)
    }
}
